"""Runs a list of commands on one machine, side by side as far as cores and GPU allow, until a deadline.

    setsid python bench/job_queue.py run JOBS.json --out FOLDER --cores 16 --gpu 8 --minutes 25 > /dev/null 2>&1 < /dev/null &
    python bench/job_queue.py wait --out FOLDER --seconds 500      # until all ended, at most so long; prints how it stands
    python bench/job_queue.py pack --out FOLDER results.tar.gz     # what there is so far: results, logs, status

JOBS.json is a list of ``{"name", "command", "cores", "gpu", "minutes", "partial"}``. The first that fits begins first; one
that does not fit yet holds nobody up. Nothing is begun again. A job is not begun if its expected ``minutes`` would end behind the
deadline, unless it is ``partial``: worth as much of it as there is time for. At the deadline what still runs is asked to end
(SIGTERM), and half a minute later ended. A command runs in a shell with ``OUT`` set to FOLDER/results, which all jobs share, and
``MINUTES`` to those that are left; what it prints is in FOLDER/logs/NAME.log. FOLDER/status.json says how each job stands, and is
replaced whole whenever that changes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGE = {"experience", "checkpoints"}
"""Folders of a run that are not packed."""
GRACE = 30.0
"""Seconds that a job has to end by itself."""


@dataclass(frozen=True)
class Job:
    """A command and what it takes.

    Fields:
        cores: processors that it keeps busy. gpu: of the GPU's slots.
        minutes: expected; 0 is not known, and begun at any time.
        partial: what it has reached when it is cut off is of use.
    """

    name: str
    command: str
    cores: float = 1.0
    gpu: float = 0.0
    minutes: float = 0.0
    partial: bool = False


@dataclass
class State:
    """How a job stands: waiting, running, done, failed, cut (off at the deadline) or left (not begun)."""

    state: str = "waiting"
    seconds: float = 0.0
    code: int | None = None
    process: Any = None
    began: float = 0.0


@dataclass
class Queue:
    """Jobs in order, and what of the machine is free."""

    jobs: list[Job]
    out: Path
    cores: float
    gpu: float
    until: float
    grace: float = GRACE
    states: dict[str, State] = field(init=False)

    def __post_init__(self) -> None:
        names = [job.name for job in self.jobs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SystemExit(f"two jobs are named {twice[0]!r}.")
        for job in self.jobs:
            if job.cores > self.cores or job.gpu > self.gpu:
                raise SystemExit(f"{job.name!r} wants {job.cores:g} cores and {job.gpu:g} of the GPU: more than there are.")
        self.states = {name: State() for name in names}
        for folder in ("logs", "results"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)

    def run(self, pause: float = 0.5) -> None:
        """All of it, until everything has ended."""
        self._write()
        while True:
            changed = self._reap()
            if time.time() >= self.until:
                changed |= self._leave()
                if self._running():
                    self._write()
                    self._cut()
                self._write()
                return
            changed |= self._begin()
            if changed:
                self._write()
            if not self._running() and not self._with("waiting"):
                return
            time.sleep(pause)

    def _with(self, state: str) -> list[Job]:
        return [job for job in self.jobs if self.states[job.name].state == state]

    def _running(self) -> list[Job]:
        return self._with("running")

    def _begin(self) -> bool:
        """Begins every waiting job that fits; those that would end too late are left."""
        changed = False
        for job in self._with("waiting"):
            state, left = self.states[job.name], self.until - time.time()
            if 60 * job.minutes > left and not job.partial:
                state.state, changed = "left", True
                continue
            cores = self.cores - sum(each.cores for each in self._running())
            gpu = self.gpu - sum(each.gpu for each in self._running())
            if job.cores > cores + 1e-9 or job.gpu > gpu + 1e-9:
                continue
            with (self.out / "logs" / f"{job.name}.log").open("w") as log:
                # A session of its own: a signal then reaches all that the command started.
                state.process = subprocess.Popen(
                    ["bash", "-c", job.command], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                    env={**os.environ, "OUT": str(self.out / "results"), "MINUTES": f"{left / 60:.2f}"}, start_new_session=True,
                )  # fmt: skip
            state.state, state.began, changed = "running", time.time(), True
        return changed

    def _reap(self) -> bool:
        ended = [job for job in self._running() if self.states[job.name].process.poll() is not None]
        for job in ended:
            state = self.states[job.name]
            state.code, state.seconds = state.process.returncode, time.time() - state.began
            state.state = "failed" if state.code else "done"
        return bool(ended)

    def _leave(self) -> bool:
        left = self._with("waiting")
        for job in left:
            self.states[job.name].state = "left"
        return bool(left)

    def _cut(self) -> None:
        """Asks what still runs to end, and ends it."""
        running = [self.states[job.name] for job in self._running()]
        for state in running:
            _signal(state.process, signal.SIGTERM)
        last = time.time() + self.grace
        for state in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                state.process.wait(max(last - time.time(), 0.0))
            _signal(state.process, signal.SIGKILL)  # and what it may have left behind
            state.code, state.seconds, state.state = state.process.wait(), time.time() - state.began, "cut"

    def _write(self) -> None:
        now = time.time()
        told = {
            "until": self.until,
            "jobs": {
                name: {
                    "state": each.state,
                    "seconds": round(now - each.began if each.state == "running" else each.seconds, 1),
                    "code": each.code,
                }
                for name, each in self.states.items()
            },
        }
        new = self.out / "status.json.new"
        new.write_text(json.dumps(told, indent=1))
        new.replace(self.out / "status.json")


def _signal(process: Any, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def load(file: Path) -> list[Job]:
    """The jobs of a list, in its order."""
    return [Job(**each) for each in json.loads(file.read_text())]


def ended(out: Path) -> bool:
    """Whether nothing of the queue runs or waits any more."""
    file = out / "status.json"
    return file.exists() and not {"waiting", "running"} & {each["state"] for each in json.loads(file.read_text())["jobs"].values()}


def show(out: Path) -> str:
    """How every job stands, and the end of what the failed ones said."""
    jobs = json.loads((out / "status.json").read_text())["jobs"]
    lines = []
    for name, each in jobs.items():
        lines.append(f"{each['state']:8} {each['seconds'] / 60:6.1f} min  {name}")
        if each["state"] == "failed":
            said = (out / "logs" / f"{name}.log").read_text(errors="replace").splitlines()
            lines += [f"           {line[:200]}" for line in said[-3:]]
    return "\n".join(lines)


def wait(out: Path, seconds: float, pause: float = 1.0) -> None:
    """Returns when everything has ended, or after so many seconds."""
    until = time.time() + seconds
    while not ended(out) and time.time() < until:
        time.sleep(pause)


def pack(out: Path, file: Path) -> None:
    """Results, logs and status in one compressed file, without what is large in the folders of runs."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if LARGE & set(Path(member.name).parts) else member

    with tarfile.open(file, "w:gz") as archive:
        for name in ("status.json", "logs", "results"):
            if (out / name).exists():
                archive.add(out / name, name, filter=kept)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "wait", "show", "pack"))
    parser.add_argument("file", nargs="?", type=Path, help="run: the list of jobs; pack: the file to write")
    parser.add_argument("--out", type=Path, required=True, help="folder of results, logs and status")
    parser.add_argument("--cores", type=float, default=os.cpu_count() or 1)
    parser.add_argument("--gpu", type=float, default=0.0, help="slots of the GPU (0)")
    parser.add_argument("--minutes", type=float, default=60.0, help="run: until the deadline (60)")
    parser.add_argument("--seconds", type=float, default=500.0, help="wait: at most so long (500)")
    given = parser.parse_args(arguments)
    if given.what in ("run", "pack") and given.file is None:
        parser.error(f"{given.what} needs a file.")
    if given.what == "run":
        Queue(load(given.file), given.out.resolve(), given.cores, given.gpu, time.time() + 60 * given.minutes).run()
    elif given.what == "wait":
        wait(given.out, given.seconds)
    if given.what == "pack":
        pack(given.out, given.file)
    else:
        print(show(given.out))


if __name__ == "__main__":
    main()
