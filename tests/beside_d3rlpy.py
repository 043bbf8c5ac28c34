"""Updates of d3rlpy's algorithms from our weights, on our rows, with our noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.models.torch.policies import ActionOutput, NormalPolicy
from d3rlpy.optimizers import AdamFactory
from d3rlpy.torch_utility import TorchMiniBatch
from stored_rows import EPS, HIDDEN, SPACE, Small, drawn_rows
from torch import Tensor, nn

from upslope.policies.control.actors import LOG_STD
from upslope.types import Trajectories

SEED = 1
"""Of their first weights."""
ENCODER = VectorEncoderFactory(list(HIDDEN))


def made(config: Any, **knobs: Any) -> Any:
    """An algorithm of theirs with networks of our size, ready to update.

    Args:
        config: Its configuration's class.
    """
    torch.manual_seed(SEED)
    shared = dict(actor_encoder_factory=ENCODER, critic_encoder_factory=ENCODER, actor_optim_factory=AdamFactory(eps=EPS),
                  critic_optim_factory=AdamFactory(eps=EPS))  # fmt: skip
    if "value_encoder_factory" in config.__dataclass_fields__:
        shared["value_encoder_factory"] = ENCODER
    algo = config(actor_learning_rate=1e-3, critic_learning_rate=1e-3, **(shared | knobs)).create(device="cpu:0")
    algo.create_impl(SPACE.observation, SPACE.actions)
    return algo


def free_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their shared spread as the papers have it: a free logarithm within bounds. Theirs is a sigmoid between two bounds."""

    def forward(self: Any, x: Tensor, *_: Any) -> ActionOutput:
        mean = self._mu(self._encoder(x))
        return ActionOutput(mean, torch.tanh(mean), self._logstd.clamp(*LOG_STD).expand_as(mean))

    monkeypatch.setattr(NormalPolicy, "forward", forward)


class TheirNoise:
    """What they draw next, instead of what torch would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.queue: list[Tensor] = []
        randn = torch.randn

        def drawn(*shape: Any, **how: Any) -> Tensor:
            return randn(*shape, **how) if how.get("generator") is not None else self.queue.pop(0).reshape(*shape)

        def rsample(normal: Any, shape: tuple[int, ...] = ()) -> Tensor:
            return normal.loc + normal.scale * self.queue.pop(0).reshape(*shape, *normal.loc.shape)

        monkeypatch.setattr(torch, "randn", drawn)
        monkeypatch.setattr(torch.distributions.Normal, "rsample", rsample)

    def follows(self, small: Small, *names: str) -> Callable[[int], None]:
        """Before each update, our noise of these names: they draw it in this order."""

        def fill(update: int) -> None:
            shape = (drawn_rows(0).rows, 1, 1, SPACE.actions)
            self.queue[:] = [small.noise(update)("normal", name, shape) for name in names]

        return fill


def their_batch(rows: Trajectories) -> TorchMiniBatch:
    def flat(column: Tensor) -> Tensor:
        return column.flatten(0, 1)

    ended = (rows.signal["discount"] == 0).float()
    return TorchMiniBatch(flat(rows.inputs.observation), flat(rows.action), rows.step_reward, flat(rows.inputs.following),
                          flat(rows.action), torch.zeros_like(ended), ended, torch.ones_like(ended), "cpu:0")  # fmt: skip


def networks_of(algo: Any) -> dict[str, Sequence[nn.Module]]:
    """Their networks by our names, each as its members."""
    modules = algo.impl._modules
    found: dict[str, Sequence[nn.Module]] = {"policy": [modules.policy], "q": modules.q_funcs, "lagged.q": modules.targ_q_funcs}
    if hasattr(modules, "targ_policy"):
        found["lagged.policy"] = [modules.targ_policy]
    if hasattr(modules, "value_func"):
        found["value"] = [modules.value_func]
    return found


def their_layers(network: str, members: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """The weights of a network of theirs under our names and in our layout: members first, inputs before outputs."""
    layers = [[module for module in member.modules() if isinstance(module, nn.Linear)] for member in members]
    for number, same in enumerate(zip(*layers, strict=True)):
        yield f"{network}.{number}.weight", torch.stack([layer.weight.detach().T for layer in same])
        yield f"{network}.{number}.bias", torch.stack([layer.bias.detach().unsqueeze(0) for layer in same])
    if isinstance(getattr(members[0], "_logstd", None), nn.Parameter):
        yield f"{network}.shared.log_std", members[0]._logstd.detach()[0].clone()


def their_weights(algo: Any) -> dict[str, Tensor]:
    """All weights of an algorithm of theirs as they are now, under our names."""
    return {name: weight for network, members in networks_of(algo).items() for name, weight in their_layers(network, members)}


def start_alike(small: Small, algo: Any) -> None:
    """We begin with their weights."""
    theirs = their_weights(algo)
    assert set(theirs) == set(small.policy.weights()), sorted(set(theirs) ^ set(small.policy.weights()))
    small.take(theirs)


def compare(small: Small, algo: Any, updates: int = 4, before: Callable[[int], None] = lambda update: None) -> None:
    """Both make some updates; all weights are then the same to 1e-5, and have moved by far more.

    Args:
        before: Called with the number of each update before they make it: to give them our noise.
    """
    start_alike(small, algo)
    first = small.weights()
    for update in range(1, updates + 1):
        rows = drawn_rows(100 + update)
        small.update(rows, update)
        before(update)
        algo.impl.update(their_batch(rows), update)
    ours = small.weights()
    for name, weight in their_weights(algo).items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        if not name.startswith("lagged"):
            assert (ours[name] - first[name]).abs().max() > 5e-4, f"{name} has not moved"
