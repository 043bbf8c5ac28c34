"""What a comparison under way shows: a live table where standard error is a terminal, plain lines where it is not."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from upslope.report.compare.cells import Cell
from upslope.report.words import clock

PLAIN_SECONDS = 60.0
"""Without a terminal, a line at least this often."""


class Watching:
    """Shows a comparison. Use it in a ``with`` block, which leaves the terminal in order however it ends.

    Args:
        total: runs of the whole comparison.
        kept: how many of them were there before.
        seconds: what a run takes, as far as is known; 0 is not at all.
    """

    def __init__(
        self, total: int, kept: int, workers: int, seconds: float = 0.0, quiet: bool = False, terminal: bool | None = None
    ):
        self.total, self.done, self.kept, self.workers, self.seconds, self.quiet = total, kept, kept, workers, seconds, quiet
        self.console = Console(stderr=True, highlight=False, force_terminal=terminal)
        self.drawing = not quiet and self.console.is_terminal and not self.console.is_dumb_terminal
        self.began, self.took = time.perf_counter(), list[float]()
        self._active: list[tuple[Cell, int]] = []
        self._said = time.perf_counter()
        self._live: Live | None = None

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # -- what happens ----------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        self._said = time.perf_counter()
        if self.drawing:
            self.console.print(Text(text), soft_wrap=True)
            return
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:  # whoever was reading has left; the runs go on
            self.quiet = True

    def finished(self, cell: Cell, path: Path, seconds: float) -> None:
        self.done += 1
        self.took.append(seconds)
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        score = summary.get("score_after")
        told = f"{summary['score']} {score:.3g}" if isinstance(score, (int, float)) else f"no {summary['score']}"
        self.line(f"{self.done:>{len(str(self.total))}}/{self.total}  {name(cell)}: {told} in {clock(seconds)}{self._left_words()}")

    def failed(self, cell: Cell, why: str) -> None:
        self.done += 1
        self.line(f"{self.done:>{len(str(self.total))}}/{self.total}  {name(cell)} FAILED: {why}")

    def going(self, active: Sequence[tuple[Cell, int]]) -> None:
        self._active = list(active)
        if self.drawing:
            if self._live is None:
                self._live = Live(console=self.console, refresh_per_second=4, transient=True)
                self._live.start()
            self._live.update(self._view())
        elif active and time.perf_counter() - self._said > PLAIN_SECONDS:
            under_way = "; ".join(f"{name(cell)} at step {step}" for cell, step in active)
            self.line(f"under way: {under_way}{self._left_words()}")

    def stopping(self, runs: int) -> None:
        self.line(f"stopping {runs} run{'s' if runs != 1 else ''} at a checkpoint; Ctrl-C again ends them at once")

    # -- how it looks ----------------------------------------------------------------------------------------------------

    def _view(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        share = sum(self._share(cell, step) for cell, step in self._active)
        grid.add_row(
            f"{self.done} of {self.total} runs",
            ProgressBar(total=self.total, completed=self.done + share, width=32),
            f"{clock(time.perf_counter() - self.began)}{self._left_words()}",
        )
        for cell, step in self._active:
            steps = int(cell.settings.get("steps") or 0)
            grid.add_row(f"  {name(cell)}", ProgressBar(total=max(steps, 1), completed=step, width=32), f"step {step} of {steps}")
        return Group(grid)

    @staticmethod
    def _share(cell: Cell, step: int) -> float:
        return min(1.0, step / max(int(cell.settings.get("steps") or 1), 1))

    def left(self) -> float | None:
        """Seconds to go: what runs have taken so far, or what was known before, for those that are not done."""
        each = sum(self.took) / len(self.took) if self.took else self.seconds
        if not each:
            return None
        missing = self.total - self.done - sum(self._share(cell, step) for cell, step in self._active)
        return max(0.0, missing * each / self.workers)

    def _left_words(self) -> str:
        left = self.left()
        return f", about {clock(left)} left" if left and self.done < self.total else ""


def name(cell: Cell) -> str:
    """A run in few words."""
    return f"{cell.label} on {cell.bed}, seed {cell.seed}" if len(cell.question.beds) > 1 else f"{cell.label}, seed {cell.seed}"
