"""Whether a run is under way: ``process.json`` in its folder names the process that works on it.

A process id alone is not enough, since ids are used again; the time at which the process began is kept beside it. When the process
leaves the run in an orderly way the file says so; an error that ends it is kept there; after a kill it names a process that is not
there any more.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from upslope.plain_data import JsonDict
from upslope.runtime.files import write_json, write_text

FILE, STATES = "process.json", "workers.json"
MOST_SAID, MOST_TRACE = 4000, 16_000
"""Characters of an error and of its traceback that are kept; of the traceback the end."""
_saying = threading.Lock()
"""Those who sample, score and learn are named one after the other, by threads of their own."""


@contextmanager
def at_work(run: Path) -> Iterator[None]:
    """Says in the run's folder that this process works on it, for as long as the block lasts, and by which error that ended."""
    mine = {"host": platform.node(), "pid": os.getpid(), "began": process_began(os.getpid())}
    write_text(run / FILE, json.dumps(mine) + "\n")
    error: JsonDict = {}
    try:
        yield
    except Exception as problem:
        if not getattr(problem, "orderly", False):
            error = {"error": in_short(problem)}
        raise
    finally:
        with suppress(OSError):  # a folder deleted meanwhile, or a full disk, must not hide how the run itself ended
            if run.is_dir():
                write_text(run / FILE, json.dumps({"ended": time.time(), **error}) + "\n")


def in_short(problem: BaseException) -> JsonDict:
    """An error as ``process.json`` keeps it."""
    trace = "".join(traceback.format_exception(problem))
    return {"kind": type(problem).__name__, "said": str(problem)[:MOST_SAID], "trace": trace[-MOST_TRACE:]}


def say_processes(run: Path, role: str, pids: Sequence[int]) -> None:
    """Names the processes that sample (``workers``), score (``reward_workers``) or learn (``learners``, this one first) for a run,
    for whoever looks."""
    with _saying, suppress(OSError, ValueError):
        known = json.loads((run / FILE).read_text())
        if known.get("pid") == os.getpid():
            write_text(run / FILE, json.dumps(known | {role: list(pids)}) + "\n")


def say_states(run: Path, states: JsonDict) -> None:
    """What they are doing, in ``workers.json``; what others said there of theirs is kept. Nothing of the run depends on it."""
    with _saying, suppress(OSError):
        known = {}
        with suppress(OSError, ValueError):
            known = json.loads((run / STATES).read_text())
        write_json(run / STATES, known | states)


def worker(record: Mapping[str, object]) -> int | None:
    """The process that is at work according to what ``process.json`` says; None if it is gone, or on another machine."""
    pid = record.get("pid")
    if elsewhere(record) or not isinstance(pid, int) or isinstance(pid, bool) or pid <= 1:
        return None
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # somebody else's, and there
    except (OSError, OverflowError):
        return None
    return pid if process_began(pid) == record.get("began") else None


def elsewhere(record: Mapping[str, object]) -> bool:
    """Whether another machine's process is named, of which nothing can be known here."""
    return record.get("host") != platform.node()


def process_began(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where the system does not tell, or it is dead but not buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
