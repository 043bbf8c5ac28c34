"""Plain sampling as a part, for places that name how rows are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from upslope.objective.base import RolloutPlan
from upslope.rollout.text import TextRollout


@dataclass(frozen=True)
class Sampled(RolloutPlan):
    """Groups of answers sampled by the policy: what a method without a rollout does in text, for a stage that samples."""

    provides: ClassVar[frozenset[str]] = TextRollout.provides

    def build(self, task: Any, policy: Any, **sizes: Any) -> TextRollout:
        return TextRollout(task, policy, **sizes)
