"""When a run ends before its last step, and which of its checkpoints is the best: both are decided by evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from upslope.errors import UserError, did_you_mean
from upslope.plain_data import JsonDict
from upslope.runtime.settings import Settings
from upslope.runtime.settings_values import best_of, target_of


@dataclass
class StopRule:
    """What the evaluations so far decide.

    Fields:
        settings: of the run: ``stop_at``, ``patience``, ``keep``.
        seen: what a checkpoint holds of it: the best value so far, its step, and how many evaluations came after it.
    """

    settings: Settings
    seen: JsonDict

    @property
    def measure(self) -> str:
        """The number of an evaluation that is looked at for the best one."""
        return best_of(self.settings.keep) or "score"

    def check(self, result: JsonDict) -> None:
        """Refuses numbers that the evaluations do not have, by the first of them."""
        numbers = sorted(key for key, value in result.items() if isinstance(value, (int, float)))
        for flag, name in (("--keep", best_of(self.settings.keep)), ("--stop-at", (target_of(self.settings.stop_at) or ("",))[0])):
            if name and name not in numbers:
                near = did_you_mean(name, numbers)
                raise UserError(f"{flag}: evaluations of this task have no {name!r}.{near} They have {', '.join(numbers)}.")

    def is_best(self, step: int, result: JsonDict) -> bool:
        """Takes an evaluation in; whether it is the best so far."""
        value = _number(result.get(self.measure))
        better = value > self.seen.get("best", -math.inf)
        self.seen |= {"best": value, "step": step, "since": 0} if better else {"since": self.seen.get("since", 0) + 1}
        return better

    def reason(self, step: int, result: JsonDict) -> str:
        """Why the run ends here; nothing if it does not."""
        if target := target_of(self.settings.stop_at):
            name, wanted = target
            if _number(result.get(name)) >= wanted:
                return f"{name} {result[name]:.4g} at step {step} reached --stop-at {self.settings.stop_at}"
        patience = self.settings.patience
        if patience and self.seen.get("since", 0) >= patience:
            best = f"{self.measure} {self.seen['best']:.4g} of step {self.seen['step']}"
            return f"{patience} evaluation{'s'[: patience > 1]} up to step {step} did not exceed the {best} (--patience)"
        return ""


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else -math.inf
