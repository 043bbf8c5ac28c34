"""Who samples and scores for a run, and what waits for whom, for the page. Nothing of it is trusted."""

from __future__ import annotations

import json
import math
from pathlib import Path

from upslope.board import safe_files
from upslope.board.log_table import LogTable
from upslope.board.run_summary import number, text
from upslope.plain_data import JsonDict

FILE = "workers.json"
ROLES = {"workers": "sampling", "reward_workers": "scoring"}
"""What each list of processes does."""
MOST_WORKERS, MOST_KINDS = 1024, 32


def workers(root: Path, parts: tuple[str, ...]) -> JsonDict:
    """What ``workers.json`` says: each process, how many assignments wait, and the faults by kind; nothing where it is not."""
    try:
        with safe_files.folder(root, *parts) as at:
            found = json.loads(safe_files.read(at, FILE))
    except (OSError, ValueError, RecursionError, safe_files.TooLarge):
        found = {}
    found = found if isinstance(found, dict) else {}
    return {
        "workers": [_worker(each, does) for role, does in ROLES.items() for each in _tables(found.get(role))],
        "waiting": {does: number(found.get(f"waiting_for_{role}")) for role, does in ROLES.items()},
        "faults": {text(kind): number(count) for kind, count in _some(found.get("faults")).items()},
    }


def _tables(listed: object) -> list[JsonDict]:
    return [each for each in (listed if isinstance(listed, list) else [])[:MOST_WORKERS] if isinstance(each, dict)]


def _worker(told: JsonDict, does: str) -> JsonDict:
    numbers = {name: number(told.get(name)) for name in ("number", "pid", "version", "rows", "seconds", "lost")}
    rate = numbers["rows"] / numbers["seconds"] if numbers["rows"] is not None and numbers["seconds"] else None
    return numbers | {"kind": does, "doing": text(told.get("doing")), "rows_per_second": rate}


def _some(value: object) -> JsonDict:
    return dict(list(value.items())[:MOST_KINDS]) if isinstance(value, dict) else {}


def busy(table: LogTable) -> JsonDict:
    """The share of the last step's time in which each of sampling, scoring and learning worked; None where nobody measured it.

    Without workers sampling and learning take turns; with them the learner is idle only while it waits for rows.
    """
    seconds, taking = _last(table, "seconds"), _last(table, "seconds_sampling")
    waits = taking / seconds if seconds and taking is not None else None
    sampling = _last(table, "worker_busy")
    return {
        "step": _last(table, "step"),
        "sampling": waits if sampling is None else sampling,
        "scoring": _last(table, "scoring_busy"),
        "learning": None if waits is None else max(0.0, 1.0 - waits),
    }


def _last(table: LogTable, key: str) -> float | None:
    column = table.steps.column(key)
    value = float(column[-1]) if column is not None and len(column) else math.nan
    return value if math.isfinite(value) else None
