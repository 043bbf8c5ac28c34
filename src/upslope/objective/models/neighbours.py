"""Recorded pairs of state and action, and which of them is nearest to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from upslope.errors import UserError
from upslope.objective.base import ActionSpace, ModelNetwork, Solved, World
from upslope.types import Metrics

LEAF = 32
"""Pairs that are compared one by one, once the tree has come down to them."""


class SearchTree:
    """A KD-tree over all pairs. Nobody changes it, so copies of a policy share it."""

    def __init__(self, pairs: np.ndarray, action: np.ndarray) -> None:
        try:
            from scipy.spatial import cKDTree
        except ImportError as missing:
            raise UserError("neighbours are looked for with scipy, which is missing: pip install 'upslope[control]'.") from missing
        # Splits at the middle of a box, not at the median: six times sooner built, and quicker to ask on recorded episodes.
        self.tree: Any = cKDTree(pairs, leafsize=LEAF, balanced_tree=False)
        self.action = torch.from_numpy(np.ascontiguousarray(action))

    def __deepcopy__(self, memo: dict[int, Any]) -> SearchTree:
        return self


class NeighbourModule(nn.Module):
    """Answers which recorded pair is nearest. It has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0
        self.found: SearchTree | None = None

    def nearest(self, observation: Tensor, frozen: bool, action: Tensor) -> Tensor:
        """Actions ``[N, T, A]`` of the recorded pairs nearest to these states and actions."""
        assert self.found is not None, "it is solved before the first update"
        asked = pairs(observation.flatten(0, 1).cpu().numpy(), action.detach().flatten(0, 1).cpu().numpy(), self.beta)
        _, rows = self.found.tree.query(asked)
        return self.found.action[torch.from_numpy(rows)].view(action.shape).to(action.device)


def pairs(observation: np.ndarray, action: np.ndarray, beta: float) -> np.ndarray:
    """The points ``(beta s, a)`` between which distances are measured."""
    return np.concatenate([beta * observation.reshape(len(observation), -1).astype(np.float64), action.astype(np.float64)], 1)


@dataclass(frozen=True)
class NeighbourSearch(ModelNetwork):
    """A search tree over recorded pairs of state and action vector."""

    def build(self, space: ActionSpace, takes_action: bool, seed: int) -> nn.Module:
        if space.discrete:
            raise UserError("neighbours are pairs of state and action vector, and this environment's actions are choices.")
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
        network.beta = self.beta
        network.found = SearchTree(pairs(world.observation, world.action, self.beta), world.action)
        return {"pairs": float(len(world.action))}
