"""The policy itself, shown less of the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upslope.errors import MethodError
from upslope.objective.base import Reference
from upslope.types import Trajectories, decision_keys


@dataclass(frozen=True)
class Blinded(Reference):
    """The policy before the step, with part of the prompt hidden (VPPO): what it would have answered without seeing.

    Which tokens are hidden depends on the task alone, so that the answers to one task are compared on equal terms.

    Fields:
        share: chance of each patch to be hidden. 1 hides everything between the kept ends.
        patch: tokens that are hidden or shown together, counted from the prompt's end.
        keep_first, keep_last: tokens of the prompt that are always shown: its opening, and the request at its end.
        token: id that stands in place of a hidden token; 0 is the padding of most vocabularies.
    """

    text_only: ClassVar[bool] = True

    share: float = 0.5
    patch: int = 1
    keep_first: int = 1
    keep_last: int = 1
    token: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.patch < 1 or min(self.keep_first, self.keep_last, self.token) < 0:
            raise MethodError(f"{self}: share is from 0 to 1, patch at least 1, the others at least 0.")

    def sees(self, rows: Trajectories) -> Trajectories:
        if not hasattr(rows.inputs, "hidden"):
            raise MethodError(f"Blinded hides tokens of a prompt, and {type(rows.inputs).__name__} has none.")
        shown = rows.inputs.prompt_mask > 0
        from_end = shown.flip(1).cumsum(1).flip(1) - 1
        from_start = shown.cumsum(1) - 1
        chance = decision_keys(rows.task, from_end.shape[1]).double() / (1 << 53)
        hidden = chance.gather(1, (from_end // self.patch).clamp_min(0)) < self.share
        hidden &= shown & (from_start >= self.keep_first) & (from_end >= self.keep_last)
        return rows.replace(inputs=rows.inputs.hidden(hidden, self.token))
