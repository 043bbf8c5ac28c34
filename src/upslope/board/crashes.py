"""How a run ended that did not end well: the error its process kept, or what is known of a process that is gone."""

from __future__ import annotations

import time
from pathlib import Path

from upslope.board import safe_files
from upslope.board.run_summary import RunSummary, text
from upslope.plain_data import JsonDict

OUTPUT, MOST_OUTPUT = "output.log", 8000
"""What a run that the board started has printed, and how much of its end is shown."""


def crash(root: Path, glance: RunSummary) -> JsonDict:
    """What is known: the error with its traceback, the end of what it printed, the last thing it wrote."""
    status, why = glance.status(time.time())
    kept = glance.process.get("error")
    error = kept if isinstance(kept, dict) else {}
    trace = error.get("trace")
    return {
        "crashed": status == "crashed",
        "why": why,
        "said": text(error.get("said"), 4000),
        "trace": trace[-16_000:] if isinstance(trace, str) else "",
        "output": _output(root, glance.parts),
        "step": glance.log.get("step", 0),
        "last_line": max((stamp[2] / 1e9 for stamp in glance.stamps.values() if stamp), default=0.0),
        "restarted": _booted() > max((stamp[2] / 1e9 for stamp in glance.stamps.values() if stamp), default=0.0),
    }


def _output(root: Path, parts: tuple[str, ...]) -> str:
    try:
        with safe_files.folder(root, *parts) as at, safe_files.open_file(at, OUTPUT) as file:
            file.seek(max(0, file.seek(0, 2) - MOST_OUTPUT))
            return file.read(MOST_OUTPUT).decode("utf-8", "replace")
    except OSError:
        return ""


def _booted() -> float:
    """When this machine was started, in unix seconds; 0 where the system does not tell."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("btime ")))
    except (OSError, StopIteration, ValueError):
        return 0.0
