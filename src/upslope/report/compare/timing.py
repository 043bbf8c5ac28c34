"""About how long: earlier runs tell, or a short one that is timed first."""

from __future__ import annotations

import itertools
import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from upslope.errors import UserError
from upslope.report.compare.cells import Cell
from upslope.report.compare.running import ended_with_us, launch, upslope_command
from upslope.runtime.settings import Settings
from upslope.tasks import domain_of

TRIAL_STEPS = 3
POLL_SECONDS = 0.05
WORTH_A_TRIAL = 10
"""Runs of fewer steps are over before a short one would have told anything."""
ASSUMED_BYTES = 1 << 30
"""Of a run, before one has been seen."""


@dataclass(frozen=True)
class Cost:
    """What a run on each task takes, and the most memory of any; 0 is not known."""

    seconds: dict[str, float]
    memory: int = ASSUMED_BYTES
    timed: bool = False
    """Whether a short run was made to find out."""
    work: Mapping[str, float] = field(default_factory=dict)
    """Of the runs on each task that the seconds are of: a grid over settings makes longer and shorter ones."""

    def of(self, cells: Sequence[Cell]) -> float:
        """Seconds of these runs one after the other; 0 if unknown for one of them."""
        known = [self.seconds.get(cell.bed, 0.0) * (_work(cell) / self.work.get(cell.bed, _work(cell))) for cell in cells]
        return sum(known) if all(known) else 0.0


def _work(cell: Cell) -> float:
    """What a run samples, in rollouts or steps of an environment: about what its time is proportional to."""
    sizes = Settings(**cell.settings)
    each = (
        (sizes.envs or 8) * (sizes.horizon or 256)
        if domain_of(cell.task) == "control"
        else (sizes.tasks_per_step or 32) * sizes.samples_per_task
    )
    return float(max(sizes.steps or 0, 1) * each)


def cost(to_run: Sequence[Cell], finished: Sequence[Cell], root: Path, threads: int) -> Cost:
    """From runs that are there; from a short run of each task that has none."""
    seconds: dict[str, float] = {}
    work: dict[str, float] = {}
    memory = 0.0
    timed = False
    for task in dict.fromkeys(cell.bed for cell in to_run):
        before = [cell for cell in finished if cell.bed == task]
        earlier = [_seen(root / cell.folder) for cell in before]
        if earlier:
            seconds[task] = sum(each[0] for each in earlier) / len(earlier)
            work[task] = sum(map(_work, before)) / len(before)
            memory = max(memory, *(each[1] for each in earlier))
            continue
        cell = max((each for each in to_run if each.bed == task), key=_work)  # the one that needs the most memory
        if int(cell.settings["steps"]) > WORTH_A_TRIAL:
            seconds[task], peak = _trial(cell, threads)
            work[task] = _work(cell)
            memory, timed = max(memory, peak), True
    return Cost(seconds, int(memory) or ASSUMED_BYTES, timed, work)


def _seen(path: Path) -> tuple[float, float]:
    """Seconds and bytes of a finished run."""
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    memory = 0.0
    for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        memory = max(memory, float(json.loads(line).get("memory") or 0.0) * 2**20)
    return float(summary["seconds"]), memory


def _trial(cell: Cell, threads: int) -> tuple[float, float]:
    """Seconds and bytes of the whole run, from one of a few steps that is watched as it logs."""
    short = replace(cell, settings={**cell.settings, "steps": TRIAL_STEPS, "eval_every": 1, "checkpoint_every": 1000})
    with tempfile.TemporaryDirectory() as scratch:
        out, log = Path(scratch) / "run", Path(scratch) / "log"
        began = time.perf_counter()
        with log.open("wb") as file:
            process = launch(upslope_command(short.command(out)), file, threads)
        arrived: list[float] = []  # when each line of its log was there
        with ended_with_us([process], "stopped while a short run was timed. Nothing has begun yet; the same command begins."):
            while process.poll() is None:
                arrived += [time.perf_counter()] * (_lines(out / "metrics.jsonl") - len(arrived))
                time.sleep(POLL_SECONDS)
        wall = time.perf_counter() - began
        if process.returncode:
            said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise UserError(f"a short run of {cell.label} on {cell.bed} failed: {(said or ['it said nothing'])[-1]}")
        return whole(cell.settings, wall, arrived), _peak_bytes()


def whole(settings: Mapping[str, Any], wall: float, arrived: Sequence[float]) -> float:
    """Seconds of a whole run from those of a short one, whose log has an evaluation behind every step and one before them.

    The second half of its log is taken: what comes first is slower for reasons that do not come again.
    """
    gaps = [after - before for before, after in itertools.pairwise(arrived)]
    step, evaluation = (median(some) if (some := gaps[start::2][-2:]) else 0.0 for start in (0, 1))
    steps, every = int(settings["steps"]), int(settings.get("eval_every") or 0)
    along = (steps - 1) // every if every else 0
    return max(wall + (steps - TRIAL_STEPS) * step + (along - TRIAL_STEPS + 1) * evaluation, 0.0)


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def _peak_bytes() -> float:
    """Of the largest child so far."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return float(most) if sys.platform == "darwin" else most * 1024.0
