"""A single learned number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from upslope.objective.base import ActionSpace, ModelNetwork
from upslope.objective.networks.layers import FlatModule
from upslope.objective.networks.pair import PairModel


class ScalarModel(nn.Module):
    """The same number at every state; its logarithm is what is learned."""

    def __init__(self, start: float):
        super().__init__()
        self.stack = FlatModule({"log": torch.tensor([math.log(start)])})

    def answer(self, observation: Tensor, action: Tensor | None, frozen: bool, members: int = 0) -> Tensor:
        """``[1, N, T, 1]``: the number."""
        rows, positions = observation.shape[:2]
        return self.stack.pieces(frozen)["log"].exp().expand(1, rows, positions, 1)

    def logarithm(self, observation: Tensor, frozen: bool) -> Tensor:
        """Its logarithm ``[N, T]``."""
        return self.stack.pieces(frozen)["log"].expand(observation.shape[:2])


@dataclass(frozen=True)
class Scalar(ModelNetwork):
    """A positive number that is learned through its logarithm.

    Fields:
        start: where it begins.
        pair: two of them, one for each of the two tasks of an environment that is never reset.
    """

    ranges: ClassVar = {"start": "(0, inf)"}

    start: float = 1.0
    pair: bool = False

    def build(self, space: ActionSpace, takes_action: bool, seed: int) -> nn.Module:
        return PairModel.build(lambda *_: ScalarModel(self.start), space, seed) if self.pair else ScalarModel(self.start)
