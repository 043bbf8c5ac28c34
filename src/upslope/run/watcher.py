"""Who is told what a run does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from upslope.plain_data import JsonDict
from upslope.setting_up import Components
from upslope.types import Metrics

if TYPE_CHECKING:
    from upslope.run import Run


class Watcher:
    """Told what the run is doing. The command line's live table is one."""

    def began(self, run: Run, components: Components) -> None: ...
    def warming(self, step: int, accuracy: float, target: float) -> None: ...
    def evaluating(self, done: int, of: int) -> None: ...
    def evaluated(self, step: int, result: JsonDict) -> None: ...
    def stepped(self, step: int, metrics: Metrics) -> None: ...
    def ended(self, summary: JsonDict) -> None: ...


class Stopped(Exception):
    """The user asked the run to stop; a checkpoint holds it."""
