"""The updater's interface: a step's rows dealt out to updates, and one optimiser step on each share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from upslope.learners.metrics import MetricSums
from upslope.learners.token_trace import TokenTrace
from upslope.types import Trajectories


class Updater(Protocol):
    """One method in one step, whose knobs and states stay as they are."""

    def shares(self, rows: Trajectories, order: torch.Generator) -> Sequence[Any]:
        """The updates of one pass over the rows, in the order of the generator."""

    def update(self, share: Any, number: int, sums: MetricSums, trace: TokenTrace | None = None) -> None:
        """One optimiser step on a share; what it showed goes to the sums.

        Args:
            number: Of the update within the step.
            trace: Keeps what the update made of each token, where somebody wants to look at it.
        """
