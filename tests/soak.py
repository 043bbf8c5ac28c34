"""A run under random faults for half an hour: ``make soak``, or ``python soak.py --minutes 5 --seed 3``.

Two processes sample and two score while one learns. Every few seconds something happens to one of them: it is killed, or stopped
so that it falls silent; now and then the run itself is killed and resumed. It must go on, log every step once, and hold no more
memory, open files and processes at the end than after it had warmed up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

WORDS = [
    "asyncflow", "--task", "reverse:length=2", "--model", "tiny:layers=1,width=32", "--tasks-per-step", "4", "--samples-per-task",
    "4", "--warm-start", "0.1", "--eval-problems", "8", "--checkpoint-every", "20", "--eval-every", "100", "--threads", "1",
    "--workers", "2", "--shares", "2", "--max-staleness", "1", "--reward-workers", "2", "--reward-seconds", "30", "--steps", "1000000",
    "--samples-logged", "0", "--record", "none", "--quiet",
]  # fmt: skip
FAULTS = {"kill a worker": 8, "stop a worker": 1, "kill a scorer": 4, "kill the run": 1}
"""What happens, and how often."""
GROWTH = 1.25
"""By how much memory may grow from the first third of the time to the last: allocators and logs are not flat to the byte."""
MORE_FILES = 8


@dataclass
class Look:
    """What the run and all that it has started hold."""

    memory: float
    files: int
    processes: int


class Soak:
    """A run that is disturbed."""

    def __init__(self, folder: Path, dice: random.Random):
        self.run, self.log, self.dice = folder / "run", folder / "said.txt", dice
        self.done: Counter[str] = Counter()
        self.process = self._started(["train", *WORDS, "--out", str(self.run)])

    def _started(self, words: list[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as file:
            return subprocess.Popen([sys.executable, "-m", "upslope", *words], stdout=file, stderr=file, start_new_session=True)

    def pids(self, kind: str) -> list[int]:
        """Of the processes that the run lists."""
        with suppress(OSError, ValueError):
            return list(json.loads((self.run / "process.json").read_text()).get(kind, []))
        return []

    def steps(self) -> list[int]:
        found = []
        with suppress(OSError):
            for line in (self.run / "metrics.jsonl").read_text().splitlines():
                with suppress(ValueError):
                    record = json.loads(line)
                    found += [record["step"]] if record["kind"] == "step" else []
        return found

    def wait_for_a_step(self, after: int, seconds: float = 300.0) -> None:
        until = time.monotonic() + seconds
        while max(self.steps(), default=0) <= after:
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the run made no step after {after}:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def disturb(self) -> str:
        """One fault; its name."""
        (kind,) = self.dice.choices(list(FAULTS), weights=list(FAULTS.values()))
        if kind == "kill the run":
            before = max(self.steps(), default=0)
            mine = [self.process.pid, *self.pids("workers"), *self.pids("scorers")]
            self.process.kill()
            self.process.wait()
            wait_until_gone(mine[1:])
            self.process = self._started(["resume", str(self.run), "--quiet"])
            self.wait_for_a_step(before)  # what came after the last checkpoint is made again
        elif pids := self.pids("scorers" if "scorer" in kind else "workers"):
            with suppress(ProcessLookupError):  # the one before is not replaced yet
                os.kill(self.dice.choice(pids), signal.SIGSTOP if "stop" in kind else signal.SIGKILL)
        self.done[kind] += 1
        return kind

    def look(self) -> Look:
        family = descendants(self.process.pid)
        return Look(sum(map(resident, family)), open_files(self.process.pid), len(family))

    def end(self) -> list[int]:
        """Stops the run; what was its family."""
        family = descendants(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise SystemExit("the run did not stop when it was asked to") from None
        return family


def descendants(pid: int) -> list[int]:
    """A process and all that it has started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parents.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def resident(pid: int) -> float:
    """Memory of a process in MiB."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return 0.0


def open_files(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(pids: list[int], seconds: float = 120.0) -> None:
    """A run that is killed takes its processes with it; one that was stopped cannot leave by itself."""
    until = time.monotonic() + seconds
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    while left := [pid for pid in pids if alive(pid)]:
        if time.monotonic() > until:
            raise SystemExit(f"processes {left} outlived the run")
        time.sleep(0.2)


def problems(looks: list[Look], steps: list[int]) -> list[str]:
    """What is wrong after all."""
    found = [] if steps == list(range(1, len(steps) + 1)) else ["steps are missing from the log, or in it twice"]
    third = max(len(looks) // 3, 1)
    first, last = looks[third : 2 * third] or looks[:third], looks[-third:]
    memory = [statistics.median(look.memory for look in part) for part in (first, last)]
    files = [max(look.files for look in part) for part in (first, last)]
    processes = [max(look.processes for look in part) for part in (first, last)]
    if memory[1] > memory[0] * GROWTH:
        found.append(f"memory grew from {memory[0]:.0f} to {memory[1]:.0f} MiB")
    if files[1] > files[0] + MORE_FILES:
        found.append(f"open files grew from {files[0]} to {files[1]}")
    if processes[1] > processes[0] + 1:
        found.append(f"processes grew from {processes[0]} to {processes[1]}")
    print(
        f"memory {memory[0]:.0f} -> {memory[1]:.0f} MiB, open files {files}, processes {processes}, {len(steps)} steps", flush=True
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak, looks = Soak(Path(folder), random.Random(flags.seed)), list[Look]()
        soak.wait_for_a_step(0, 600)
        until = time.monotonic() + 60 * flags.minutes
        while time.monotonic() < until:
            before = max(soak.steps(), default=0)
            kind = soak.disturb()
            time.sleep(soak.dice.uniform(1.0, 5.0))
            if kind != "stop a worker":  # that one is found out after a minute of silence
                soak.wait_for_a_step(before)
            looks.append(soak.look())
            left = (until - time.monotonic()) / 60
            print(f"{kind}: step {max(soak.steps(), default=0)}, {looks[-1]}, {left:.1f} minutes left", flush=True)
        soak.wait_for_a_step(max(soak.steps(), default=0))
        wait_until_gone(soak.end())
        wrong = problems(looks, soak.steps())
        print(dict(soak.done), "; ".join(wrong) or "all is well")
        return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
