"""Observation and reward normalisation: running statistics that bring observations and rewards of an environment to a common scale.

They belong to the rollout and move only when it samples: learning reads what they gave, evaluation uses the observation
statistics as they stand and raw rewards. Statistics are float64 and exact: after any number of batches they equal the mean and
the population variance of all data at once, with no made-up first sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.packed import Piece, numbers_of
from upslope.tasks.spaces import ObservationLayout

Stored = Tensor | float | int | str
"""What a state may hold in a checkpoint."""


class RunningMoments:
    """Mean and variance ``[D]`` of all rows seen so far, in one pass (batches merged as Chan, Golub and LeVeque do)."""

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean = np.zeros(size)
        self.squares = np.zeros(size)
        """Sum of squared deviations from the mean."""

    def update(self, rows: np.ndarray) -> None:
        """Take in rows ``[B, D]``."""
        added = rows.shape[0]
        total = self.count + added
        mean = rows.mean(0, dtype=np.float64)
        deviation = rows - mean
        shift = mean - self.mean
        self.squares += np.einsum("bd,bd->d", deviation, deviation) + shift * shift * (self.count * added / total)
        self.mean += shift * (added / total)
        self.count = total

    @property
    def variance(self) -> np.ndarray:
        """Population variance; zero before anything was seen."""
        return self.squares / max(self.count, 1.0)

    def state(self) -> dict[str, Stored]:
        return {"count": self.count, "mean": torch.from_numpy(self.mean.copy()), "squares": torch.from_numpy(self.squares.copy())}

    def load_state(self, state: Mapping[str, Any]) -> None:
        missing = [key for key in ("count", "mean", "squares") if key not in state]
        if missing:
            raise UserError(f"the saved normaliser has no {', '.join(missing)}: it was saved by a run with other settings.")
        if len(state["mean"]) != len(self.mean):
            raise UserError(f"the saved normaliser is for {len(state['mean'])} numbers, this task has {len(self.mean)}.")
        self.count = float(state["count"])
        self.mean = state["mean"].double().cpu().numpy().copy()
        self.squares = state["squares"].double().cpu().numpy().copy()


class ObservationNormaliser:
    """``(observation - mean) / sqrt(variance + eps)``, clipped.

    Fields:
        clip: Largest absolute value a policy sees; keeps a dimension that suddenly moves from drowning the others.
        eps: Added to the variance; a dimension that never moved gives zero.
    """

    def __init__(self, size: int, clip: float = 10.0, eps: float = 1e-8) -> None:
        self.moments = RunningMoments(size)
        self.clip, self.eps = clip, eps

    def update(self, observation: np.ndarray) -> None:
        """Take in observations ``[B, D]`` that the policy is about to act on."""
        self.moments.update(observation)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """Observations ``[B, D]`` as the policy sees them, float32; before any update they are only clipped."""
        scaled = observation - self.moments.mean
        if self.moments.count:
            scaled /= np.sqrt(self.moments.variance + self.eps)
        return scaled.clip(-self.clip, self.clip).astype(np.float32)

    def state(self) -> dict[str, Stored]:
        return self.moments.state()

    def load_state(self, state: Mapping[str, object]) -> None:
        self.moments.load_state(state)


class PackedNormaliser(ObservationNormaliser):
    """The same for the numbers of packed observations; the images beside them stay as they are."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(sum(piece.size for piece in pieces if not piece.is_image))
        self.pieces = pieces

    def update(self, observation: np.ndarray) -> None:
        super().update(numbers_of(observation, self.pieces))

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        shown = observation.copy()
        numbers = numbers_of(shown, self.pieces)
        numbers[...] = super().__call__(numbers)
        return shown


def observation_normaliser(layout: ObservationLayout) -> ObservationNormaliser:
    """That of a task's observations."""
    return PackedNormaliser(layout.pieces) if layout.pieces else ObservationNormaliser(prod(layout.shape))


class RewardNormaliser:
    r"""Reward divided by the running spread of the discounted return, clipped; the mean is kept, since it carries the goal.

    .. math::  G_t = \gamma G_{t-1} + r_t, \qquad \hat r_t = r_t / \sqrt{\operatorname{var}(G) + \epsilon}

    While all returns seen are equal there is no spread to divide by, and rewards stay as they are.

    Fields:
        gamma: The discount of the method. The nearer to one, the larger the spread and the smaller the rewards.
        clip: Largest absolute reward that is learned from.
        eps: Added to the variance.
    """

    def __init__(self, envs: int, gamma: float, clip: float = 10.0, eps: float = 1e-8) -> None:
        self.moments = RunningMoments(1)
        self.gamma, self.clip, self.eps = gamma, clip, eps
        self.discounted = np.zeros(envs)
        """Discounted return of each running episode. Not saved: episodes start afresh where a state is loaded."""

    def restart(self) -> None:
        """Forget the running episodes; the statistics stay."""
        self.discounted[:] = 0.0

    def __call__(self, reward: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Take in one step of all environments, ``[envs]`` each, and scale its rewards. Float32."""
        self.discounted = self.discounted * self.gamma + reward
        self.moments.update(self.discounted[:, None])
        self.discounted[ended] = 0.0
        scaled = reward / self.spread
        return scaled.clip(-self.clip, self.clip).astype(np.float32)

    @property
    def spread(self) -> np.float64:
        """What rewards are divided by now."""
        variance, mean = self.moments.variance[0], self.moments.mean[0]
        # Relative to the mean, because equal returns have a variance of rounding error, not of zero.
        return np.sqrt(variance + self.eps) if variance > 1e-12 * mean * mean else np.float64(1.0)

    def state(self) -> dict[str, Stored]:
        return self.moments.state()

    def load_state(self, state: Mapping[str, object]) -> None:
        self.moments.load_state(state)
        self.restart()
