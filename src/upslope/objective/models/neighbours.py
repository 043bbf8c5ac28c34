"""Recorded pairs of state and action, and which of them is nearest to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from upslope.errors import MethodError
from upslope.objective.base import ActionSpace, ModelNetwork, Nearest, Solved, World
from upslope.types import Metrics


class NeighbourModule(nn.Module):
    """Answers which recorded pair is nearest. It has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0
        self.search: Nearest | None = None
        self.recorded: Tensor | None = None

    def nearest(self, observation: Tensor, frozen: bool, action: Tensor) -> Tensor:
        """Actions ``[N, T, A]`` of the recorded pairs nearest to these states and actions."""
        assert self.search is not None and self.recorded is not None, "it is solved before the first update"
        rows = self.search(pairs(observation.flatten(0, 1), action.flatten(0, 1), self.beta))
        return self.recorded[rows].view(action.shape).to(action)


def pairs(observation: Tensor, action: Tensor, beta: float) -> Tensor:
    """The points ``(beta s, a)`` between which distances are measured, in double precision."""
    return torch.cat([beta * observation.flatten(1).double(), action.double()], 1)


@dataclass(frozen=True)
class NeighbourSearch(ModelNetwork):
    """A search over recorded pairs of state and action vector."""

    def build(self, space: ActionSpace, takes_action: bool, seed: int) -> nn.Module:
        if space.discrete:
            raise MethodError("neighbours are pairs of state and action vector, and this environment's actions are choices.")
        if space.pieces:
            seen = ", ".join(map(str, space.pieces))
            raise MethodError(f"neighbours are near by a distance, and observations here are {seen}: there is none between images "
                              "and numbers. Take td3-bc.")  # fmt: skip
        return NeighbourModule()


@dataclass(frozen=True)
class NearestNeighbour(Solved):
    r"""Finds the recorded pair :math:`(\beta s_i, a_i)` nearest to :math:`(\beta s, a)`, exactly (PRDC).

    Parts ask it for ``nearest``: that pair's action.

    Fields:
        beta: how much a state counts beside an action. More stays at the same state: without bound, the nearest pair is the
            recorded one itself; 0 takes the nearest action of all, wherever it was taken.
    """

    ranges: ClassVar = {"beta": "[0, inf)"}

    beta: float = 2.0

    def model_network(self) -> ModelNetwork:
        return NeighbourSearch()

    def solve(self, network: nn.Module, world: World) -> Metrics:
        assert isinstance(network, NeighbourModule)
        network.beta, network.recorded = self.beta, world.action
        network.search = world.search(pairs(world.observation, world.action, self.beta))
        return {"pairs": float(len(world.action))}
