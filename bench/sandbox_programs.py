"""Sandboxed programs a second, from a warm pool and with a sandbox started for each: ``python bench/sandbox_programs.py``.

A program computes for 10 ms and prints a number, which is checked. Ours go to a pool of two slots: each slot's interpreter has
started before its program comes, runs that one program under every limit, and is thrown away. Beside it is ``bwrap python -I -S``
with every namespace and read-only binds but no limits, filter or other user, one after the other, as a script would call it.
``--at-a-time 2`` starts two of those side by side: what is left then is what a start costs.
"""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from side_by_side import arguments, main
from sides import Clock, Row, Setting, Side

PROGRAM = """
import time
end = time.perf_counter() + 0.01
while time.perf_counter() < end:
    pass
print({number} ** 2)
"""


@dataclass(frozen=True)
class ProgramWork:
    """Programs of a unit of work, slots of the pool, and programs that the other side starts at a time."""

    programs: int = 20
    slots: int = 2
    at_a_time: int = 1


def texts(given: ProgramWork) -> Iterator[list[tuple[str, str]]]:
    """Programs of one unit after the other, each with what it must print; no two alike."""
    numbers = itertools.count()
    while True:
        yield [(PROGRAM.format(number=n), f"{n**2}\n") for n in itertools.islice(numbers, given.programs)]


def run_pool(clock: Clock, given: ProgramWork, setting: Setting) -> None:
    from upslope.runtime.sandbox import Sandbox

    with Sandbox(slots=given.slots) as sandbox:
        clock.ready()
        for work in texts(given):
            running = [sandbox.submit(text) for text, _ in work]
            right = sum(each.result().stdout == wanted for each, (_, wanted) in zip(running, work, strict=True))
            clock.tick(programs=len(work), right=right)


def cold_command() -> list[str]:
    """The interpreter in a sandbox that only separates."""
    prefix = Path(sys.base_prefix).resolve()
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    words += ["--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
    words += ["--ro-bind", str(prefix), "/py", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    return [*words, f"/py/bin/python3.{sys.version_info.minor}", "-I", "-S", "-c"]


def run_cold(clock: Clock, given: ProgramWork, setting: Setting) -> None:
    command = cold_command()

    def run(text: str) -> str:
        return subprocess.run([*command, text], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(given.at_a_time) as pool:
        clock.ready()
        for work in texts(given):
            right = sum(said == wanted for said, (_, wanted) in zip(pool.map(run, (text for text, _ in work)), work, strict=True))
            clock.tick(programs=len(work), right=right)


def row_of(at_a_time: int) -> Row:
    """The row beside a sandbox started for each program, so many at a time."""
    beside = "one after the other" if at_a_time == 1 else f"{at_a_time} at a time"
    return Row(
        name="sandbox_programs" if at_a_time == 1 else f"sandbox_programs_{at_a_time}",
        work="programs of 10 ms in the sandbox: a pool of 2 slots with every limit, beside bwrap python -I -S without limits, "
        f"started for each, {beside}",
        unit="programs/s",
        ours=Side("upslope, warm pool", run_pool, (Setting("2 slots"),)),
        peer=Side(f"bwrap python -I -S, {beside}", run_cold, (Setting(beside),)),
        given=ProgramWork(at_a_time=at_a_time),
        window=2,
        exact=("programs", "right"),
        rate="programs",
        wanted=1.5,
        uncounted=True,
        goal="1.5 times as many programs a second are wanted, beside one after the other",
    )


ROW = row_of(1)

if __name__ == "__main__":
    parser = arguments(ROW)
    parser.add_argument("--at-a-time", type=int, default=1, help="programs that the other side starts at a time (1)")
    asked = parser.parse_args()
    main(dataclasses.replace(row_of(asked.at_a_time), window=asked.window), asked)
