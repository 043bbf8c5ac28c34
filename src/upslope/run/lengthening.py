"""``resume --steps``: a run gets another number of steps than it was planned with, from its last checkpoint on."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass

import tomli_w

from upslope.errors import Remark, UserError
from upslope.learners.optimizer_step import learning_rate
from upslope.runtime.files import write_text
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.settings import Settings


@dataclass(frozen=True)
class Lengthening:
    """What is asked of a run. Nothing in its folder changes before `write`.

    Fields:
        before: its settings as they were.
        after: the same with the new number of steps; of a run that had ended early, without what ended it.
        done: steps it has made.
    """

    folder: RunFolder
    before: Settings
    after: Settings
    done: int

    @classmethod
    def of(cls, folder: RunFolder, before: Settings, steps: int) -> Lengthening:
        """Refuses a number of steps that leaves none to make."""
        done = int(folder.latest().name[5:])
        if steps <= done:
            told = f"{folder.path} has made {done} steps already; --steps {steps} is how many there shall be in all"
            raise UserError(f"{told}. Give more.")
        # A run that was never to act does not begin to because it is longer.
        offline = steps if before.steps and before.offline_steps == before.steps else before.offline_steps
        after = dataclasses.replace(before, steps=steps, offline_steps=offline)
        return cls(folder, before, dataclasses.replace(after, stop_at="", patience=0) if _ended_early(folder) else after, done)

    def write(self) -> None:
        """Says what changes and writes it down; ``run.toml`` keeps both numbers of steps. The run is then no longer finished."""
        finished = self.folder.path / "summary.json"
        if self.after != self.before or finished.exists():  # one that ended early may go on to its planned end
            raw = self.folder.table()
            changed = ("steps", "offline_steps", "stop_at", "patience")
            raw["settings"] |= {name: value for name in changed if (value := getattr(self.after, name)) is not None}
            raw["lengthened"] = [*raw.get("lengthened", []), {"at": self.done, "from": self.before.steps, "to": self.after.steps}]
            write_text(self.folder.path / "run.toml", tomli_w.dumps(raw))
        for remark in self._remarks():
            warnings.warn(Remark(remark), stacklevel=4)
        finished.unlink(missing_ok=True)

    def _remarks(self) -> list[str]:
        found, steps, planned = [], self.after.steps or 0, self.before.steps or 1
        if steps != planned:
            before, after = learning_rate(self.before, min(self.done + 1, planned)), learning_rate(self.after, self.done + 1)
            told = f"from step {self.done} on this is a run of {steps} steps, not of {planned}: schedules are now those of {steps}"
            found.append(f"{told} (learning rate of the next step {before:.3g} -> {after:.3g}).")
        if (self.before.stop_at, self.before.patience) != (self.after.stop_at, self.after.patience):
            found.append("the run had ended early; --stop-at and --patience no longer apply to it.")
        return found


def _ended_early(folder: RunFolder) -> bool:
    try:
        return "ended_early" in json.loads((folder.path / "summary.json").read_bytes())
    except (OSError, ValueError, TypeError):
        return False
