"""Any module of torch with its weights in one vector, as our own layers have theirs."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import Tensor, nn
from torch.func import functional_call

from upslope.errors import MethodError
from upslope.objective.networks.layers import FlatModule


class FlatNetwork(FlatModule):
    """A module as it was given, computing with pieces of one vector in place of its own weights.

    What of the module does not learn (buffers, parameters without gradient) comes along as it is.

    Args:
        module: It is not changed, and later changes of it are not seen.

    Raises:
        MethodError: if nothing in it learns, or if what it computes depends on more than its weights and inputs.
    """

    def __init__(self, module: nn.Module):
        _check(module)
        parameters = dict(module.named_parameters())
        super().__init__({name: each.detach().float() for name, each in parameters.items() if each.requires_grad})
        same = {id(each): name for name, each in parameters.items()}
        several = dict(module.named_parameters(remove_duplicate=False))
        self.shared = {name: same[id(each)] for name, each in several.items() if name not in parameters}
        """Further names of weights that stand in several places."""
        constants = {name: each.detach() for name, each in parameters.items() if not each.requires_grad}
        constants |= {name: each.detach() for name, each in module.named_buffers()}
        self.constant_names = {name: f"constant_{number}" for number, name in enumerate(constants)}
        for name, value in constants.items():
            self.register_buffer(self.constant_names[name], value.clone())
        # In a tuple it is no submodule: it has the shapes and no numbers, and is neither moved nor saved.
        self._template = (copy.deepcopy(module).to("meta"),)

    @property
    def is_users_own(self) -> bool:
        """Whether the module is one that a user gave."""
        return not type(self._template[0]).__module__.startswith("upslope.objective.")

    def constants(self) -> dict[str, Tensor]:
        """What does not learn, by the module's own names."""
        return {name: getattr(self, own) for name, own in self.constant_names.items()}

    def stored(self) -> dict[str, Tensor]:
        return self.frozen | self.constants()

    def forward(self, inputs: Tensor, frozen: bool = False) -> Tensor:
        """What the module says of the inputs."""
        pieces = self.pieces(frozen) | self.constants()
        again = {name: pieces[known] for name, known in self.shared.items()}
        return functional_call(self._template[0], {**pieces, **again}, (inputs,))


def _check(module: nn.Module) -> None:
    """Refuses modules whose outputs depend on what they saw before, or on chance."""
    if not any(each.requires_grad for each in module.parameters()):
        raise MethodError(f"the network {type(module).__name__} has no weights that learn. Leave requires_grad on for some.")
    for name, each in _uncertain(module):
        raise MethodError(
            f"the network {type(module).__name__} has {type(each).__name__} as {name!r}, which computes other things in training "
            "than in use. Take GroupNorm or LayerNorm and no dropout, or call eval() on it to keep it as it is."
        )


def _uncertain(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, each in module.named_modules():
        moving = getattr(each, "running_mean", None) is not None or "Dropout" in type(each).__name__
        if moving and each.training:
            yield name, each
