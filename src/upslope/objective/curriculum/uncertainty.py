"""Which tasks next? Those whose outcome is uncertain."""

from __future__ import annotations

from dataclasses import dataclass

from upslope.errors import MethodError
from upslope.objective.base import Curriculum
from upslope.types import Offer, Order, draw_by_weight


@dataclass(frozen=True)
class ByUncertainty(Curriculum):
    r"""Tasks that are sometimes solved, more often than those always or never solved: :math:`\sqrt{\hat v (1 - \hat v)} + floor`.

    Fields:
        memory: what says how often a task is solved.
        candidates: tasks drawn for each one taken. More chooses harder; 1 leaves nothing to choose.
        floor: weight of a task whose outcome is certain. Larger is nearer to uniform; 0 never looks at such a task again.
    """

    memory: str = "success"
    candidates: int = 4
    floor: float = 0.05

    def __post_init__(self) -> None:
        if self.candidates < 1 or not self.floor >= 0:
            raise MethodError(
                f"ByUncertainty has candidates={self.candidates} and floor={self.floor:g}; at least 1, and not below 0."
            )

    def __call__(self, offer: Offer) -> Order:
        success = offer.recall(self.memory).clamp(0, 1)
        return draw_by_weight(offer, (success * (1 - success)).sqrt() + self.floor)
