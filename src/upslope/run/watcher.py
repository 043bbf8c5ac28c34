"""Who is told what a run does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from upslope.plain_data import JsonDict
from upslope.setting_up import Components
from upslope.types import Metrics

if TYPE_CHECKING:
    from upslope.run import Run


class Watcher:
    """Told what the run is doing, in more detail than a callback and without a say in it; the command line's live table is one.

    What it raises ends the run as it is, without a further checkpoint.
    """

    tells_remarks: ClassVar[bool] = False
    """Whether it tells the user of a task's remarks; where nobody does they are warnings."""

    def began(self, run: Run, components: Components) -> None:
        """Before anything else, of a run that is resumed too."""

    def warming(self, step: int, accuracy: float, target: float) -> None:
        """While an untrained model learns from solutions: its greedy accuracy, and where that ends."""

    def evaluating(self, done: int, of: int) -> None:
        """While an evaluation goes on: problems or episodes."""

    def evaluated(self, step: int, result: JsonDict) -> None:
        """After an evaluation."""

    def sampled(self, step: int, rows: list[JsonDict]) -> None:
        """The samples of a step that are logged, before `stepped`; none in control."""

    def stepped(self, step: int, metrics: Metrics) -> None:
        """After a step."""

    def saved(self, step: int, path: Path) -> None:
        """When a checkpoint is on the disk."""

    def ended(self, summary: JsonDict) -> None:
        """After all else."""


class Stopped(Exception):
    """The user asked the run to stop; a checkpoint holds it."""

    orderly = True
    """No error of the run: it is stopped, not crashed."""
