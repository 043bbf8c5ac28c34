"""``upslope runs``: a table of the runs of a folder; of one of them who does what, again every second while it goes on."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from upslope.errors import UserError
from upslope.plain_data import JsonDict

ABOUT = "list runs: how far each is and how it scores; of one run, who samples and learns, while it goes on"
COLUMNS = ("run", "status", "method", "task", "step", "score", "time")
LATEST = ("reward", "tokens_per_second", "seconds", "seconds_sampling", "waited", "worker_busy", "age", "oldest")
"""Numbers of the last step that say who waits for whom."""
AGAIN_SECONDS = 1.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", metavar="RUN", nargs="?", default="runs", help="the folder of a run, or of runs (runs)")
    add("--once", action="store_true", help="of a run that goes on: show it once and stop")
    add("--json", action="store_true", help="the same as JSON, once")


def runs(flags: argparse.Namespace) -> int:
    """Prints the table, or a run."""
    path = Path(flags.path)
    if not path.is_dir():
        raise UserError(f"there is no folder {flags.path!r}. Give that of a run or of runs, or leave it out for 'runs'.")
    if not (path / "run.toml").is_file():
        found = listed(path)
        print(json.dumps(found, indent=1, ensure_ascii=False) if flags.json else table(found, path))
        return 0
    while True:
        record = looked_at(path)
        print(json.dumps(record, indent=1, ensure_ascii=False) if flags.json else described(record))
        if flags.once or flags.json or record["status"] != "running":
            return 0
        time.sleep(AGAIN_SECONDS)
        print()


def listed(folder: Path) -> list[JsonDict]:
    """The runs below a folder, the newest last."""
    from upslope.board.index import Runs

    return sorted(Runs(folder).listing()["runs"], key=lambda record: record["updated"])


def looked_at(path: Path) -> JsonDict:
    """One run: as the list has it, its last step, its workers and faults."""
    from upslope.board.index import Runs

    record = Runs(path.resolve().parent).record(path.resolve().name)
    log = _lines_at_end(path / "metrics.jsonl")
    last = next((line for line in reversed(log) if line.get("kind") == "step"), {})
    told = _object(path / "workers.json")
    summary = _object(path / "summary.json")
    return record | {
        "last": {name: last[name] for name in LATEST if name in last},
        "workers": told.get("workers", []) if record["status"] == "running" else [],
        "learners": _object(path / "process.json").get("learners", []) if record["status"] == "running" else [],
        "reward_workers": told.get("reward_workers", []) if record["status"] == "running" else [],
        "waiting": told.get("waiting_for_workers", 0),
        "waiting_for_reward": told.get("waiting_for_reward_workers", 0),
        "faults": summary.get("faults", told.get("faults", {})),
    }


def table(records: Sequence[JsonDict], folder: Path) -> str:
    """The runs of a folder in columns."""
    from upslope.report.words import clock

    if not records:
        return f"no runs in {folder}; 'upslope train dhpo' makes one."
    rows = [COLUMNS] + [
        (record["id"], record["status"], record["method"], record["task"], f"{record['step']}/{record['steps']}",
         _score(record), clock(record["seconds"] or 0))
        for record in records
    ]  # fmt: skip
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def described(record: JsonDict) -> str:
    """A run and who works for it."""
    head = f"{record['id']}  {record['status']}  {record['method']} on {record['task']}, step {record['step']} of {record['steps']}"
    lines = [head, f"score {_score(record)}"]
    if record["last"]:
        lines.append("last step: " + ", ".join(f"{name} {value:.4g}" for name, value in record["last"].items()))
    for worker in record["workers"]:
        lost = f", replaced {worker['lost']} times" if worker["lost"] else ""
        version = "no weights yet" if worker["version"] is None else f"weights of step {worker['version']}"
        did = f"{worker['rows']} rows in {worker['seconds']:.1f} s"
        lines.append(f"worker {worker['number']} (process {worker['pid']}): {worker['doing']}, {version}, {did}{lost}")
    if record["learners"]:
        lines.append(f"learners: processes {', '.join(map(str, record['learners']))}")
    if record["workers"]:
        lines.append(f"waiting to be sampled: {record['waiting']}")
    for scorer in record["reward_workers"]:
        lost = f", replaced {scorer['lost']} times" if scorer["lost"] else ""
        did = f"{scorer['rows']} answers in {scorer['seconds']:.1f} s"
        lines.append(f"reward process {scorer['number']} (process {scorer['pid']}): {scorer['doing']}, {did}{lost}")
    if record["reward_workers"]:
        lines.append(f"waiting to be scored: answers to {record['waiting_for_reward']} problems")
    if record["faults"]:
        lines.append("faults: " + ", ".join(f"{name} {count}" for name, count in record["faults"].items()))
    return "\n".join(lines)


def _score(record: JsonDict) -> str:
    before, after = record["score_before"], record["score"]
    if after is None:
        return "-" if before is None else f"{before:.3g}"
    return f"{after:.3g} at the start" if before is None else f"{before:.3g} -> {after:.3g}"


def _lines_at_end(path: Path, size: int = 65_536) -> list[JsonDict]:
    """The last whole lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - size))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [line for line in found if isinstance(line, dict)]


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
