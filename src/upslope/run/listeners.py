"""Whom a run tells what it does: its watcher, its trackers and the user's callbacks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from upslope.errors import Remark
from upslope.plain_data import JsonDict
from upslope.run.callbacks import CallbackList
from upslope.run.watcher import Stopped, Watcher
from upslope.runtime.trackers import Forgiving, make_trackers, tracker_name
from upslope.setting_up import Components
from upslope.types import Metrics

if TYPE_CHECKING:
    from upslope.run import Run


class Listeners(Watcher):
    """Passes on what a run tells. Use it in a ``with`` block: leaving it closes the trackers.

    Args:
        watcher: The user's own, or the command line's.
        callbacks: As `upslope.run.callbacks.Callback` has it.
        trackers: As objects, or by name in addition to those of the plan.
    """

    def __init__(self, watcher: Watcher | None = None, callbacks: Sequence[object] = (), trackers: Sequence[object] = ()):
        self.watcher, self.given = watcher or Watcher(), tuple(trackers)
        self.callbacks = CallbackList(callbacks)
        self.trackers: list[Forgiving] = []

    def __enter__(self) -> Listeners:
        return self

    def __exit__(self, *problem: object) -> None:
        self._close()

    def table(self) -> JsonDict:
        """For ``run.toml``: what was given as objects, which a folder cannot hold, by class. No number of the run needs them."""
        objects = [tracker_name(each) for each in self.given if not isinstance(each, str)]
        found = {"callbacks": [type(each).__name__ for each in self.callbacks.callbacks], "trackers": objects}
        return {"listeners": {kind: names for kind, names in found.items() if names}} if any(found.values()) else {}

    # -- what happens --------------------------------------------------------------------------------------------------

    def began(self, run: Run, components: Components) -> None:
        self.watcher.began(run, components)
        of_task = () if self.watcher.tells_remarks else getattr(components.task, "remarks", ())
        for remark in (*of_task, *self._remarks(run)):
            warnings.warn(Remark(remark), stacklevel=2)
        names = list(dict.fromkeys((*run.plan.trackers, *(each for each in self.given if isinstance(each, str)))))
        objects = [each for each in self.given if not isinstance(each, str)]
        self.trackers = make_trackers((*names, *objects), run.path, run.plan.table())

    def warming(self, step: int, accuracy: float, target: float) -> None:
        self.watcher.warming(step, accuracy, target)

    def evaluating(self, done: int, of: int) -> None:
        self.watcher.evaluating(done, of)

    def evaluated(self, step: int, result: JsonDict) -> None:
        self.watcher.evaluated(step, result)
        for tracker in self.trackers:
            tracker.tell("log_evaluation", step, dict(result))
        self.callbacks.call("on_evaluation", step, step, dict(result))

    def sampled(self, step: int, rows: list[JsonDict]) -> None:
        self.watcher.sampled(step, rows)
        for tracker in self.trackers:
            tracker.tell("log_samples", step, [dict(row) for row in rows])

    def stepped(self, step: int, metrics: Metrics) -> None:
        self.watcher.stepped(step, metrics)
        for tracker in self.trackers:
            tracker.tell("log", step, dict(metrics))
        self.callbacks.call("on_step", step, step, dict(metrics))

    def saved(self, step: int, path: Path) -> None:
        self.watcher.saved(step, path)
        self.callbacks.call("on_checkpoint", step, step, path)

    def ended(self, summary: JsonDict) -> None:
        for tracker in self.trackers:
            tracker.tell("log_summary", dict(summary))
        self._close()
        self.watcher.ended(summary)
        self.callbacks.call("on_end", summary["steps"], dict(summary))
        self.check("The run has ended and is whole.")

    # -- what a callback asks for --------------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        return self.callbacks.failure is not None

    def check(self, saved: str) -> None:
        """Raises what a callback failed with, if one has; ``saved`` says what is safe."""
        if self.failed:
            raise self.callbacks.error(saved)

    def ending(self, stopped: Stopped) -> Exception:
        """What a run that stops here raises: a callback's failure, or that it was asked to stop."""
        return self.callbacks.error(f"The run {stopped}") if self.failed else stopped

    def _close(self) -> None:
        for tracker in self.trackers:
            tracker.tell("close")
        self.trackers = []

    def _remarks(self, run: Run) -> list[str]:
        here, found = self.table().get("listeners", {}), []
        if not run.folder.checkpoints():
            if here:
                again = ", ".join(f"{kind}=[{', '.join(names)}]" for kind, names in here.items())
                found.append(
                    f"{' and '.join(here)} are objects, which a run's folder cannot hold: give them to resume again ({again})."
                )
            return found
        before = run.folder.table().get("listeners")
        for kind, names in before.items() if isinstance(before, dict) else ():
            if kind not in here and isinstance(names, list):
                what = ", ".join(map(str, names))
                found.append(f"the run had the {kind} {what}, which are not here: up.resume(RUN, {kind}=[...]) takes them.")
        return found
