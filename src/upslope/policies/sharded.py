"""A language model in parts: each of several processes holds its share of every weight, gradient and moment (torch's FSDP2).

A layer is put together when it is computed and taken apart again behind it, in the forward and in the backward pass. Every pass is
therefore one that all processes go through together, with rows of their own: whoever has no more rows goes through one all the same
(`upslope.learners.updates.slicing.passes_of_others`). `transformers` computes it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from upslope.errors import UserError
from upslope.policies.forward.activation_cache import KeptPasses
from upslope.policies.language_model import LanguageModel
from upslope.policies.model_files import ModelFiles
from upslope.runtime.tensor_parts import held_here, part_of, put_together, put_together_for_saving
from upslope.types import Trajectories


class ShardedModel(LanguageModel):
    """A `LanguageModel` of which this process holds a part: rows of every matrix. Heads are small, and whole in every process.

    Args:
        like: What it is made from, whole; nothing of it is changed.
        mesh: The processes that hold the parts.
        whole: The same policy whole, for whoever samples and saves: `gather` brings it up to date.
    """

    sharded = True
    shares_prompts = False
    """Keys and values of a prompt would leave the layer that FSDP2 takes apart behind it."""

    def __init__(self, like: LanguageModel, mesh: Any, whole: LanguageModel | None = None):
        vars(self).update(vars(like))
        check_can_be_sharded(like)
        self.plain, self.kept, self._body, self._files = True, KeptPasses(), None, ModelFiles()
        self.whole, self._mesh = whole, mesh
        self._names = [name.removeprefix("model.") for name in like.weights() if name.startswith("model.")]
        self._skeleton = _without_numbers(like.model)
        self._dtype = like.compute_dtype
        self._take_apart(like.device, learns=True)
        self.heads = {name: copy.deepcopy(head) for name, head in like.heads.items()}
        self.load_weights(like.weights())

    def _take_apart(self, device: torch.device, learns: bool) -> None:
        """Makes the model in parts, whose numbers are yet to be given."""
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        model, own = copy.deepcopy(self._skeleton), next(self._skeleton.parameters()).dtype
        if not learns:
            model.requires_grad_(False)
        precision = MixedPrecisionPolicy() if self._dtype == own else MixedPrecisionPolicy(self._dtype, torch.float32)
        for module in (*blocks_of(model), model):
            fully_shard(module, mesh=self._mesh, reshard_after_forward=True, mp_policy=precision)
            assert isinstance(module, FSDPModule)
            # The loss is a sum over all rows, and FSDP2 would take the mean over processes. Gloo cannot multiply on the way.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        model.to_empty(device=device)
        with torch.no_grad():
            for buffer, known in zip(model.buffers(), self._skeleton.buffers(), strict=True):
                buffer.copy_(known)
        self.model = model.eval()

    def _chunks(self, rows: Trajectories) -> Any:
        """All rows in one pass: other processes count on it."""
        if rows.rows and rows.sampled.shape[1]:
            yield slice(0, rows.rows)

    # -- parameters ----------------------------------------------------------------------------------------------------

    def _own(self) -> dict[str, Tensor]:
        """What `LanguageModel.weights` has of the model, in parts."""
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return {f"model.{name}": own[name] for name in self._names}

    def _of_heads(self) -> dict[str, Tensor]:
        return {f"heads.{name}.{key}": value for name, head in self.heads.items() for key, value in head.state_dict().items()}

    def weights(self) -> dict[str, Tensor]:
        """What this process holds of each weight, by name."""
        return {name: held_here(tensor) for name, tensor in self._own().items()} | self._of_heads()

    def weights_in_all(self) -> dict[str, Tensor]:
        """Those that every process holds whole, and that must be the same in all of them."""
        return self._of_heads()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Takes its part of whole weights, in place."""
        with torch.no_grad():
            for name, tensor in (self._own() | self._of_heads()).items():
                held_here(tensor).copy_(part_of(weights[name], tensor))

    def gathered(self) -> dict[str, Tensor]:
        """All weights, whole, in the memory of the first process; the others get none. All of them must ask for it."""
        first = self._mesh.get_rank() == 0
        found = {name: put_together_for_saving(tensor, first) for name, tensor in self._own().items()} | self._of_heads()
        return found if first else {}

    def gather(self) -> None:
        """Brings the whole policy, where there is one, up to date. All processes must ask for it."""
        own = {} if self.whole is None else self.whole.weights()
        with torch.no_grad():
            for name, tensor in self._own().items():
                whole = put_together(tensor)
                if own:
                    own[name].copy_(whole)
            for name, tensor in self._of_heads().items():
                if own:
                    own[name].copy_(tensor)

    def frozen_copy(self) -> ShardedModel:
        frozen = copy.copy(self)
        frozen.kept, frozen.whole, frozen._files = KeptPasses(), None, ModelFiles()
        frozen._take_apart(self.device, learns=False)
        frozen.heads = {name: copy.deepcopy(head).requires_grad_(False) for name, head in self.heads.items()}
        with torch.no_grad():
            for name, tensor in frozen.weights().items():
                tensor.copy_(self.weights()[name])
        return frozen


def shard(policy: LanguageModel, keep: bool = False) -> ShardedModel:
    """The policy in parts, one for each process of the group that this one has joined.

    Args:
        keep: The whole one stays, for sampling and saving. Otherwise it is of no use any more, and its memory is free.
    """
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh

    assert distributed.group.WORLD is not None
    mesh = DeviceMesh.from_group(distributed.group.WORLD, policy.device.type)
    parts = ShardedModel(policy, mesh, policy if keep else None)
    if not keep:
        policy.model, policy._body = parts.model, None
    return parts


# -- what can be divided ---------------------------------------------------------------------------------------------------


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model: the list of modules that holds most of its parameters."""
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each)]
    largest = max(lists, key=lambda each: sum(parameter.numel() for parameter in each.parameters()), default=())
    return list(largest)


def check_can_be_sharded(policy: LanguageModel) -> None:
    """Refuses a model that has nothing to put together one after the other, or adapters.

    Raises:
        UserError: with what to do.
    """
    cure = "Leave --shard out"
    if policy.adapted:
        raise UserError(f"--shard: {policy.name!r} has adapters, whose gradients and moments are small. {cure}.")
    if not blocks_of(policy.model):
        raise UserError(f"--shard puts a model together layer by layer, and {policy.name!r} has no list of layers. {cure}.")
    if odd := [name for name, parameter in policy.model.named_parameters() if not parameter.dim()]:
        raise UserError(f"--shard divides the rows of each weight, and {odd[0]} of {policy.name!r} is a single number. {cure}.")


def _without_numbers(model: Any) -> Any:
    """A copy of a model that holds no weights, only what they are like."""
    blank = {
        id(own): nn.Parameter(torch.empty_like(own, device="meta"), requires_grad=own.requires_grad) for own in model.parameters()
    }
    return copy.deepcopy(model, blank)
