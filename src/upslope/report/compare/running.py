"""Runs side by side: each a process of its own, so that one that fails, or is killed, takes nothing with it.

A run that is there is kept, one that was cut short goes on, and Ctrl-C asks those under way for a checkpoint before it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from upslope.errors import UserError
from upslope.report.compare.cells import Cell, Checked, check_agrees
from upslope.report.compare.watching import Watching
from upslope.runtime.environment import ALLOCATOR
from upslope.runtime.memory import free_bytes
from upslope.runtime.run_folder import RunFolder
from upslope.tasks import domain_of

LOGS, LOCK = "logs", ".lock"
POLL_SECONDS = 0.2
STOP_SECONDS = 60.0
"""What a run gets to reach its next checkpoint after Ctrl-C, and nobody's step should take longer."""


class Interrupted(Exception):
    """The user stopped the comparison; what was finished is kept."""


@dataclass(frozen=True)
class Failure:
    """A run that ended without a result."""

    cell: Cell
    why: str
    log: Path


@dataclass
class RunJob:
    """A process under way."""

    cell: Cell
    process: subprocess.Popen[bytes]
    log: Path
    began: float = field(default_factory=time.perf_counter)


def upslope_command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "upslope", *words]  # -P: as the command itself, not importing from where it is started


def environment(threads: int) -> dict[str, str]:
    """What a run inherits: one thread each for small models, so that they share the cores instead of fighting for them."""
    return {**ALLOCATOR, **os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}


def sort_out(cells: Sequence[Cell], root: Path, checked: Checked) -> tuple[list[Cell], list[Cell]]:
    """Cells that are finished already, and those to run; earlier runs with other settings are refused."""
    finished, to_run = list[Cell](), list[Cell]()
    for cell in cells:
        path = root / cell.folder
        if (path / "run.toml").is_file():
            check_agrees(cell, path, checked)
        (finished if (path / "summary.json").is_file() else to_run).append(cell)
    return finished, to_run


@contextmanager
def only_one(root: Path) -> Iterator[tuple[int, ...]]:
    """Refuses a second comparison in the same folder. Runs inherit the lock: it lasts as long as the last of them."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        yield ()
        return
    root.mkdir(parents=True, exist_ok=True)
    with (root / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{root} is in use: a comparison, or a run one has left behind, is still at work there.") from None
        yield (file.fileno(),)


def run_cells(
    cells: Sequence[Cell], root: Path, *, workers: int, threads: int, watching: Watching, keep_open: tuple[int, ...] = ()
) -> list[Failure]:
    """Trains the cells, so many at a time; those that failed, with the last thing they said."""
    waiting, jobs, failures = list(cells), list[RunJob](), list[Failure]()
    (root / LOGS).mkdir(parents=True, exist_ok=True)
    with signals_interrupt():
        try:
            while waiting or jobs:
                while waiting and len(jobs) < workers:
                    jobs.append(_start(waiting.pop(0), root, threads, keep_open))
                for job in [each for each in jobs if each.process.poll() is not None]:
                    jobs.remove(job)
                    failures += _ended(job, root, watching)
                watching.going([(job.cell, steps_done(root / job.cell.folder)) for job in jobs])
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            watching.stopping(len(jobs))
            _stop(jobs)
            raise Interrupted(_left_behind(cells, root)) from None
        except BaseException:
            _stop(jobs, patience=0)
            raise
    return failures


def _ended(job: RunJob, root: Path, watching: Watching) -> list[Failure]:
    path = root / job.cell.folder
    if (path / "summary.json").is_file():
        watching.finished(job.cell, path, time.perf_counter() - job.began)
        return []
    failure = Failure(job.cell, _last_words(job), job.log)
    watching.failed(job.cell, failure.why)
    return [failure]


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Whoever ends the comparison, by Ctrl-C, by ``kill`` or by closing the terminal, ends its runs with it, in order."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    try:
        old = {name: signal.signal(getattr(signal, name), interrupt) for name in names}
    except ValueError:  # only the main thread can listen
        yield
        return
    try:
        yield
    finally:
        for name, handler in old.items():
            signal.signal(getattr(signal, name), handler)


@contextmanager
def ended_with_us(processes: Sequence[subprocess.Popen[bytes]], told: str) -> Iterator[None]:
    """Processes that keep nothing: whoever ends the comparison meanwhile ends them and all that they have started.

    Raises:
        Interrupted: after Ctrl-C or ``kill``, with what is ``told`` then.
    """
    with signals_interrupt():
        try:
            yield
        except BaseException as problem:
            for process in processes:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if isinstance(problem, KeyboardInterrupt):
                raise Interrupted(told) from None
            raise


def _start(cell: Cell, root: Path, threads: int, keep_open: tuple[int, ...]) -> RunJob:
    path, log = root / cell.folder, root / LOGS / f"{cell.folder}.txt"
    words = ["resume", str(path), "--quiet"] if (path / "run.toml").is_file() else cell.command(path)
    with log.open("ab") as file:
        return RunJob(cell, launch(upslope_command(words), file, threads, keep_open), log)


def launch(command: Sequence[str], log: IO[bytes] | int, threads: int, keep_open: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """A process that a Ctrl-C at the terminal does not reach: whoever started it decides how it ends."""
    return subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(threads), start_new_session=True,
        pass_fds=keep_open,
    )  # fmt: skip


def _stop(jobs: Sequence[RunJob], patience: float = STOP_SECONDS) -> None:
    """Asks every run to stop at a checkpoint, and ends those that do not in time; a second Ctrl-C ends them at once."""
    for job in jobs:
        if job.process.poll() is None:
            job.process.send_signal(signal.SIGINT)
    until = time.perf_counter() + patience
    try:
        while time.perf_counter() < until and any(job.process.poll() is None for job in jobs):
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        pass
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()


def _left_behind(cells: Sequence[Cell], root: Path) -> str:
    begun = [RunFolder(root / cell.folder) for cell in cells if (root / cell.folder / "run.toml").is_file()]
    unfinished = [run for run in begun if not (run.path / "summary.json").is_file()]
    half = sum(bool(run.checkpoints()) for run in unfinished)
    told = f"stopped: of {len(cells)} runs {len(begun) - len(unfinished)} are finished and kept"
    told += f", {half} can go on from a checkpoint" if half else ""
    return f"{told}. The same command goes on; 'upslope compare {root}' compares what is there."


def _last_words(job: RunJob) -> str:
    """The last error line of a run's log, or how it ended."""
    lines = [line.strip() for line in job.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    code = job.process.returncode
    if code == -signal.SIGKILL:
        return "it was killed, most often for want of memory; fewer --jobs need less"
    said = [line.removeprefix("upslope: ") for line in lines if line.startswith("upslope: ")]
    return (said or lines or [f"it ended with code {code} and said nothing"])[-1]


def steps_done(path: Path) -> int:
    """The last whole step in a run's log, from the end of the file: it is asked often."""
    try:
        with (path / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            tail = file.read()
    except OSError:
        return 0
    import json

    for line in reversed(tail.split(b"\n")):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0


# -- how many at a time, and how long --------------------------------------------------------------------------------------


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of(question: Any) -> int:
    """Torch threads of each run: as given, one for small models and control, else all cores."""
    given = question.settings.get("threads")
    small = question.model.split(":")[0] == "tiny" or all(domain_of(task) == "control" for task in question.tasks)
    return int(given or (1 if small else cores()))


def room_for(threads: int, run_bytes: int) -> int:
    """How many runs the cores and the free memory carry at once: at least one."""
    by_memory = free_bytes() // max(run_bytes, 1) if run_bytes else cores()
    return max(1, min(cores() // threads, by_memory))
