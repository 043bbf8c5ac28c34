"""Knobs that follow the progress of the run."""

from __future__ import annotations

from dataclasses import dataclass

from upslope.errors import MethodError
from upslope.objective.base import Controller, State


@dataclass(frozen=True)
class LinearSchedule(Controller):
    r"""Knobs moved linearly with the run's progress p, as in :math:`k(p) = (1-p)\,start + p\,end`: a clip that narrows, say.

    Fields:
        moves: the knobs, by path.
        start, end: their value before the first step and after the last.
    """

    moves: tuple[str, ...] = ("surrogate.low", "surrogate.high")
    start: float = 0.2
    end: float = 0.0

    def __post_init__(self) -> None:
        if not self.moves:
            raise MethodError("LinearSchedule.moves is empty; name the knobs to move, as in surrogate.low.")

    def knobs(self, state: State, progress: float) -> dict[str, float]:
        return dict.fromkeys(self.moves, (1 - progress) * self.start + progress * self.end)


@dataclass(frozen=True)
class DownSampling(Controller):
    r"""Shares of rows and of tokens that learn, moved linearly with the run's progress p (D3S).

    .. math::  [rows, tokens](p) = (1-p)\,[rows_0, tokens_0] + p\,[rows_1, tokens_1]

    Fields:
        rows_start, rows_end: share of rows at the beginning and the end. Starting low is fast; ending at 1 prevents overfitting.
        tokens_start, tokens_end: the same for tokens.
        until: share of the run after which the end values hold.
        rows_knob, tokens_knob: the knobs that are moved; give the position where a slot holds several parts (``filter.1.keep``).
    """

    rows_start: float = 0.25
    rows_end: float = 1.0
    tokens_start: float = 0.2
    tokens_end: float = 1.0
    until: float = 1.0
    rows_knob: str = "filter.keep"
    tokens_knob: str = "weight.fraction"

    def __post_init__(self) -> None:
        for name in ("rows_start", "rows_end", "tokens_start", "tokens_end", "until"):
            if not 0 < getattr(self, name) <= 1:
                raise MethodError(f"DownSampling.{name} is {getattr(self, name)}; it is a share above 0 and at most 1.")

    def knobs(self, state: State, progress: float) -> dict[str, float]:
        share = min(progress / self.until, 1.0)
        return {
            self.rows_knob: (1 - share) * self.rows_start + share * self.rows_end,
            self.tokens_knob: (1 - share) * self.tokens_start + share * self.tokens_end,
        }
