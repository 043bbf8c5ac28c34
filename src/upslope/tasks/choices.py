"""Tasks with so few answers that what a policy does is known exactly, by its chance of giving each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NEAR, ELSE = 0.02, 0.005
"""How far a warm start may leave each chance from where it should be, and the chance of anything else."""


@dataclass(frozen=True)
class Choices:
    """All answers there are to a task's problems, and what is measured of a policy's chances of giving them.

    Fields:
        texts: the answers.
        measured: from the chances ``[K]`` to the ``score``, larger being better, and further numbers of an evaluation.
        score_name: what the score is.
        start: chances that a warm start brings a model to; empty: it has nowhere to go.
    """

    texts: tuple[str, ...]
    measured: Callable[[np.ndarray], dict[str, float]]
    score_name: str
    start: tuple[float, ...] = ()

    def at_start(self, chances: np.ndarray) -> bool:
        """Whether a policy has these chances, nearly, as it should when it begins."""
        return bool(np.abs(chances - np.array(self.start)).max() <= NEAR) and float(chances.sum()) >= 1 - ELSE
