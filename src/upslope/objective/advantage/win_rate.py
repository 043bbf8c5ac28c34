"""Who is preferred: advantages from how often an answer beats the others of its group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Advantage
from upslope.objective.functional.contests import first_of_group, group_extreme
from upslope.types import Batch


@dataclass(frozen=True)
class WinRate(Advantage):
    r"""How much more often than not an answer wins: :math:`A_i = \hat P(y_i \succ \pi) - \tfrac12` (SPPO).

    The chances come from a data part (`Compared`), which leaves them in the rows' ``signal``.

    Fields:
        with_self: an answer's comparison with itself, 1/2, counts among the K, as in the released code: advantages are smaller by
            (K - 1)/K. Without it the estimate is unbiased.
        single: only the answers of highest and lowest win rate have an advantage, by their chance against each other
            (``sppo_single`` of the released code).
    """

    with_self: bool = True
    single: bool = False

    def needs(self) -> frozenset[str]:
        if self.single:
            return frozenset({"signal.win_rate", "signal.beats_worst", "group"})
        return frozenset({"signal.win_rate_with_self" if self.with_self else "signal.win_rate"})

    def __call__(self, batch: Batch) -> Tensor:
        if self.single:
            return batch.per_decision(chance_of_best(batch) / 2)
        return batch.per_decision(_signal(batch, "win_rate_with_self" if self.with_self else "win_rate") - 0.5)


@dataclass(frozen=True)
class PreferredPair(Advantage):
    r"""The answer of highest win rate of each group wins, that of lowest loses, by twice their difference (INPO).

    .. math::  A_w = 2\,\big(\hat P(y_w \succ \pi) - \hat P(y_l \succ \pi)\big) = -A_l

    An answer's comparison with itself counts in the win rate. Of two answers that is :math:`2 P(y_w \succ y_l) - 1`, with which a
    loss of contests has the gradient that it has in expectation if the winner is drawn. Of more, win rates decide and not how the
    two would meet: where preferences go round, the best may well lose against the worst. Losses of contests take what is above 1
    for certain. The other answers take no part, and nobody does where all win alike.

    Fields:
        hard: a win is a win, however likely it was: advantages are 1 and -1.
    """

    hard: bool = False

    def needs(self) -> frozenset[str]:
        return frozenset({"signal.win_rate_with_self", "group"})

    def __call__(self, batch: Batch) -> Tensor:
        rate, there = _signal(batch, "win_rate_with_self"), batch.lengths() > 0
        best, worst = first_of_group(batch, rate, there, "amax"), first_of_group(batch, rate, there, "amin")
        apart = 2 * (group_extreme(batch, rate, there, "amax") - group_extreme(batch, rate, there, "amin"))
        size = apart.sign() if self.hard else apart
        return batch.per_decision(torch.where(best ^ worst, torch.where(best, size, -size), 0.0))


def chance_of_best(batch: Batch) -> Tensor:
    """Twice the chance over 1/2 that the row of highest win rate of each group beats that of lowest ``[N]``: on the first of them,
    the opposite on the second, zero on the others."""
    rate, there = _signal(batch, "win_rate"), batch.lengths() > 0
    best, worst = first_of_group(batch, rate, there, "amax"), first_of_group(batch, rate, there, "amin")
    sure = group_extreme(batch, 2 * _signal(batch, "beats_worst") - 1, best, "amax")
    decided = (best ^ worst) & sure.isfinite()
    return torch.where(decided, torch.where(best, sure, -sure), 0.0)


def _signal(batch: Batch, name: str) -> Tensor:
    if name not in batch.signal:
        raise MethodError(f"the advantage reads signal[{name!r}], which nobody measured. Give the method data=Compared().")
    return batch.signal[name].to(batch.sampled.dtype)
