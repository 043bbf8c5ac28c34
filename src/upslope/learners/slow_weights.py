"""Slow weights: networks learn for a few updates, then their weights return part of the way to where they began.

The part that asks for them is a controller (`Controller.slow_weights`). The optimisers know nothing of it and keep their moments.
"""

from __future__ import annotations

import torch
from torch import Tensor

from upslope.errors import MethodError, UserError
from upslope.objective.networks.layers import FlatModule
from upslope.policies.control.network_policy import NetworkPolicy, flat_modules
from upslope.types import Method, SlowWeights, State, call


def slow_weights_of(method: Method) -> SlowWeights | None:
    """What a method's controllers say of slow weights."""
    found = [asked for part in method.controller if (asked := call(method, part, part.slow_weights)) is not None]
    if len(found) > 1:
        raise MethodError(f"{method.name} has {len(found)} controllers with slow weights; one network can follow one of them only.")
    return found[0] if found else None


class KeptWeights:
    """The slow weights of a run.

    Args:
        asked: Of which networks, every how many updates, and how far.
    """

    def __init__(self, method: Method, policy: NetworkPolicy, asked: SlowWeights):
        if unknown := [name for name in asked.networks if name not in policy.networks]:
            raise MethodError(f"{method.name} keeps slow weights of {unknown[0]!r}; it has {', '.join(policy.networks)}.")
        self.asked = asked
        self._modules = {name: flat_modules(policy.networks[name]) for name in asked.networks}
        self._slow = {name: [module.flat.detach().clone() for module in modules] for name, modules in self._modules.items()}

    def step(self, update: int) -> None:
        """Moves slow weights and learning ones together, if that is due behind this update (the first is 1)."""
        if update % self.asked.every:
            return
        for name, modules in self._modules.items():
            for slow, module in zip(self._slow[name], modules, strict=True):
                _together(slow, module, self.asked.rate)

    def state(self) -> State:
        return {f"{name}.{number}": slow for name, kept in self._slow.items() for number, slow in enumerate(kept)}

    def load_state(self, state: State) -> None:
        own = self.state()
        if state.keys() != own.keys():
            raise UserError("the checkpoint holds slow weights of other networks; it belongs to another method.")
        for name, slow in own.items():
            slow.copy_(state[name])


def slowest(method: Method) -> int:
    """Updates between two steps of a method's slow weights; 1 where it has none."""
    asked = slow_weights_of(method)
    return 1 if asked is None else asked.every


def _together(slow: Tensor, module: FlatModule, rate: float) -> None:
    with torch.no_grad():
        if rate < 1.0:
            slow.lerp_(module.flat, rate)
        else:
            slow.copy_(module.flat)
        module.flat.copy_(slow)
