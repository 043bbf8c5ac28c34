"""What the claim scripts share: the same runs for every method, over seeds, in parallel; statistics, a plot and the page.

A claim is judged on runs with paired seeds: the same warm start, the same problems, the same evaluation. The page says what was
run and what came out, whatever that is.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "claims"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run: a method with knobs, in one condition, with one seed."""

    label: str
    method: str
    condition: str
    seed: int
    knobs: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gave."""

    cell: Cell
    before: float
    after: float
    seconds: float
    metrics: list[dict[str, Any]]

    def curve(self, name: str) -> np.ndarray:
        """A metric over the steps."""
        return np.array([record.get(name, np.nan) for record in self.metrics], dtype=float)


def run_cell(cell: Cell) -> Result:
    """Trains one cell in a folder that is thrown away."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import upslope as up

    with tempfile.TemporaryDirectory() as folder:
        run = up.train(cell.method, knobs=dict(cell.knobs), seed=cell.seed, out=folder, **dict(cell.settings))
        summary = run.summary
        return Result(cell, summary["score_before"], summary["score_after"], summary["seconds"], run.metrics)


def run_all(cells: Sequence[Cell], workers: int = 2) -> list[Result]:
    """All cells, a process each, with a progress bar."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    context = multiprocessing.get_context("spawn")
    with Progress(*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        job = bar.add_task("runs", total=len(cells))
        with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
            futures = [pool.submit(run_cell, cell) for cell in cells]
            for future in futures:
                future.add_done_callback(lambda _: bar.advance(job))
            return [future.result() for future in futures]


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Interquartile mean over seeds with a 95% bootstrap interval."""
    from upslope.runtime.statistics import bootstrap_interval, interquartile_mean

    low, high = bootstrap_interval(values, interquartile_mean)
    return interquartile_mean(values), low, high


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Mean of ours minus theirs, seed by seed, with a 95% bootstrap interval."""
    from upslope.runtime.statistics import bootstrap_interval

    difference = np.asarray(ours) - np.asarray(theirs)
    low, high = bootstrap_interval(difference)
    return float(difference.mean()), low, high


def verdict(low: float, high: float) -> str:
    """``held`` if the interval of ours minus theirs lies above zero, ``did not hold`` if below, else not shown."""
    return "held" if low > 0 else "did not hold" if high < 0 else "not shown at this scale"


def cell_text(values: Sequence[float], form: Callable[[float], str] = "{:.3f}".format) -> str:
    """``IQM [low, high]``."""
    middle, low, high = (form(value) for value in spread(values))
    return f"{middle} [{low}, {high}]"


def write_page(name: str, lines: Sequence[str], began: float, command: str) -> Path:
    """The claim's page, with the command, the date of torch and the time it took."""
    import torch

    import upslope
    from upslope.runtime.files import write_text

    minutes = (time.time() - began) / 60
    made = f"*Made by `{command}` in {minutes:.0f} minutes (upslope {upslope.__version__}, torch {torch.__version__}, "
    made += f"Python {sys.version.split()[0]}, two processes of one thread).*"
    write_text(PAGES / f"{name}.md", "\n".join([*lines, "", made, ""]))
    return PAGES / f"{name}.md"
