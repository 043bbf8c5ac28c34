"""A run at a glance, for the list: read from the beginnings and ends of its files, however long they are."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from upslope.board import notes, safe_files
from upslope.board.plan_file import parse_plan
from upslope.plain_data import JsonDict
from upslope.runtime import process_file
from upslope.runtime.data_files import shown_name
from upslope.runtime.sandbox.limits import WEAK

LATELY = 60.0
"""Seconds after its last line in which a run that does not name its process counts as under way."""
SPARK = 40
"""Points of the small curve in the list."""
END = 16 * 1024
"""Bytes read at either end of ``metrics.jsonl``."""
LINE = 4 * 1024
"""Bytes in which a line of ``metrics.jsonl`` is expected to end, where only some are read."""
MOST_TEXT = 300
"""Characters of a name, a task or a reason in the list."""
PLAN_KEYS = {
    "": ("domain", "task", "model", "dataset"),
    "settings": ("seed", "steps"),
    "method": ("name", "parent", "family"),
}
"""What the list needs of ``run.toml``; reading all of it 500 times would take a second."""
_PLAN_LINE = re.compile(r"^(?:\[.*|(?:domain|task|model|dataset|seed|steps|name|parent|family) *=.*)$", re.MULTILINE)
_STEP = re.compile(rb'^\{"kind": ?"step".*$', re.MULTILINE)
_GAIN = re.compile(rb'"(episode_return|reward)": ?(-?\d[\d.eE+-]*)[,}]')
FILES = ("run.toml", "summary.json", "metrics.jsonl", process_file.FILE, "rollouts.jsonl", notes.FILE)
VIEWS = {
    "critics": re.compile(r"q_(?:loss|value)|value_loss"),
    "preferences": re.compile(r"logp_chosen|margin|preferred|preference_gap|exploitability|judge_pairs"),
    "workers": re.compile(r"worker_busy|scoring_busy|age_share_.*|fault_.*"),
}
"""Views that a run has by the metrics it logs; each matches a whole name."""
VIEW_FILES = {"problems": "problems.jsonl", "preferences": "verdicts.jsonl", "workers": process_file.STATES}
"""Views that a run has by the files it writes."""
KILLED = "its process is gone and did not say why: killed, out of memory, or the machine was switched off"


@dataclass
class RunSummary:
    """What the list shows of a run, and by which files it knows that."""

    id: str
    stamps: dict[str, tuple[int, int, int] | None] = field(default_factory=dict)
    plan: JsonDict = field(default_factory=dict)
    summary: JsonDict = field(default_factory=dict)
    process: JsonDict = field(default_factory=dict)
    log: JsonDict = field(default_factory=dict)
    recorded: bool = False
    files: frozenset[str] = frozenset()
    """Of those that make a view, which are there."""
    notes: JsonDict = field(default_factory=dict)
    unread: bool = False
    """Whether its log has changed and was not read yet."""
    problems: dict[str, str] = field(default_factory=dict)
    """By file: why it cannot be read."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.id.split("/"))

    def look(self, at: int, read_log: bool = True) -> bool:
        """Reads again which of its files changed; ``at`` is its open folder. Whether any did. The log can be left for later."""
        stamps = {name: safe_files.stamp(at, name) for name in FILES}
        changed = {name for name in FILES if stamps[name] != self.stamps.get(name) or not self.stamps}
        if self.unread:
            changed.add("metrics.jsonl")
        self.unread = "metrics.jsonl" in changed and not read_log
        if self.unread:
            changed.discard("metrics.jsonl")
        self.stamps = stamps
        for name in changed:
            self.problems.pop(name, None)
        if "run.toml" in changed:
            self.plan = self._read(at, "run.toml", read_plan)
        if "summary.json" in changed:
            self.summary = self._read(at, "summary.json", read_object) if stamps["summary.json"] else {}
        if process_file.FILE in changed:
            self.process = self._read(at, process_file.FILE, read_object) if stamps[process_file.FILE] else {}
            self.problems.pop(process_file.FILE, None)  # it only says whether somebody is at work
        if notes.FILE in changed:
            self.notes = self._read(at, notes.FILE, notes.read_notes) if stamps[notes.FILE] else {}
            self.problems.pop(notes.FILE, None)
        if "metrics.jsonl" in changed:
            self._look_at_log(at)
        self.files = frozenset(name for name in VIEW_FILES.values() if (safe_files.stamp(at, name) or (0, 0, 0))[1])
        lines = stamps["rollouts.jsonl"]
        self.recorded = (lines is not None and lines[1] > 0) or _has_folder(at, "episodes")
        return bool(changed)

    def record(self, now: float) -> JsonDict:
        """As the list shows it; nothing in it that JSON cannot say."""
        plan, done, log = self.plan, self.summary, self.log
        task, method = shown_name(text(plan.get("task"))), plan.get("method", {})
        domain = plan.get("domain", "text")
        low, high = pair(done.get("score_after_interval")) if done else (log.get("low"), log.get("high"))
        group, _, name = self.id.rpartition("/")
        began, updated = self._times()
        status, why = self.status(now)
        return {
            "id": self.id,
            "name": name,
            "group": group,
            "status": status,
            "why": why or (WEAK if plan.get("settings", {}).get("sandbox") == "weak" else ""),
            "method": text(method.get("name")),
            "parent": text(method.get("parent")),
            "family": text(method.get("family")),
            "task": task,
            "model": text(plan.get("model")),
            "domain": domain,
            "seed": number(plan.get("settings", {}).get("seed")),
            "step": number(done.get("steps", log.get("step", 0))),
            "steps": number(plan.get("settings", {}).get("steps")),
            "score_name": text(done.get("score")) or ("mean return" if domain == "control" else "accuracy"),
            "score_before": number(done.get("score_before", log.get("before") if log.get("moved") else None)),
            "score": number(done.get("score_after", log.get("score"))),
            "low": number(low),
            "high": number(high),
            "seconds": number(done.get("seconds", max(0.0, updated - began))),
            "tokens": number(done.get("tokens")),
            "began": began,
            "updated": updated,
            "spark": log.get("spark", []),
            "recorded": self.recorded,
            "has": self.views(),
            "note": self.notes.get("note", ""),
            "tags": self.notes.get("tags", []),
        }

    def views(self) -> list[str]:
        """Which of the views that not every run has this one can fill."""
        keys = self.log.get("keys", ())
        found = {view for view, pattern in VIEWS.items() if any(pattern.fullmatch(key) for key in keys)}
        found |= {view for view, name in VIEW_FILES.items() if name in self.files}
        if self.recorded:
            found.add("rollouts")
        if self.plan.get("dataset"):
            found.add("data")
        if self.plan.get("method", {}).get("family") == "preference":
            found.add("preferences")
        return sorted(found)

    def status(self, now: float) -> tuple[str, str]:
        """Where it stands, and for a broken or a crashed one why."""
        if self.problems:
            return "broken", " ".join(self.problems.values())
        if self.stamps.get("summary.json"):
            return "finished", ""
        if self.running(now):
            return "running", ""
        if isinstance(error := self.process.get("error"), dict):
            kind, said = text(error.get("kind")), text(error.get("said")).partition("\n")[0]
            return "crashed", said if kind == "UserError" and said else f"{kind}: {said}" if said else kind
        gone = "pid" in self.process and "ended" not in self.process and not process_file.elsewhere(self.process)
        return ("crashed", f"{KILLED}.") if gone else ("stopped", "")

    def running(self, now: float) -> bool:
        """By the process it names; where it names none here, or one of another machine, by the time of its last line."""
        if "ended" in self.process:
            return False
        if process_file.worker(self.process) is not None:
            return True
        elsewhere = "pid" not in self.process or process_file.elsewhere(self.process)
        return elsewhere and now - self._times()[1] < LATELY

    def _times(self) -> tuple[float, float]:
        times = [stamp[2] / 1e9 if stamp else 0.0 for stamp in (self.stamps.get("run.toml"), self.stamps.get("metrics.jsonl"))]
        return times[0], max(times)

    def _read(self, at: int, name: str, reader: Any) -> JsonDict:
        try:
            return reader(safe_files.read(at, name))
        except (OSError, ValueError, RecursionError, safe_files.TooLarge) as problem:
            reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            self.problems[name] = f"{name} cannot be read: {reason.rstrip('.')[:MOST_TEXT]}."
            return {}

    def _look_at_log(self, at: int) -> None:
        if self.stamps["metrics.jsonl"] is None:
            self.log = {}
            return
        try:
            with safe_files.open_file(at, "metrics.jsonl") as file:
                self.log = read_log(file, self.log)
        except OSError as problem:
            self.problems["metrics.jsonl"] = f"metrics.jsonl cannot be read: {problem.strerror}."


def read_plan(data: bytes) -> JsonDict:
    """What the list needs of ``run.toml``."""
    whole = data.decode("utf-8")
    # Our own files have a value per line; only what somebody wrote by hand has to be read in full.
    return parse_plan(whole if '"""' in whole or "'''" in whole else _excerpt(whole))


def _excerpt(whole: str) -> str:
    kept, wanted = [], PLAN_KEYS[""]
    for line in _PLAN_LINE.findall(whole):
        if line.startswith("["):
            section = line.strip().strip("[]")
            wanted = PLAN_KEYS.get(section, ())
            if wanted:
                kept.append(line)
        elif line.partition("=")[0].strip() in wanted:
            kept.append(line)
    return "\n".join(kept)


def read_object(data: bytes) -> JsonDict:
    """A JSON object."""
    found = json.loads(data.decode("utf-8"))
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


# -- metrics.jsonl ---------------------------------------------------------------------------------------------------------


def read_log(file: BinaryIO, before: JsonDict) -> JsonDict:
    """Last step, first and last score and a small curve, from both ends of the log and some lines between."""
    size = file.seek(0, 2)
    file.seek(0)
    start = file.read(END)
    head = tail = whole_lines(start)
    if size > END:
        file.seek(size - END)
        tail = whole_lines(file.read(END).partition(b"\n")[2])
    found: JsonDict = {"spark": _spark(file, size, start)}
    found["keys"] = _keys(tail)
    found["step"] = next((at for line in reversed(tail) if isinstance(at := _of_kind(line, "step").get("step"), int)), 0)
    first = next((record for line in head if (record := _of_kind(line, "evaluation"))), {})
    last = next((record for line in reversed(tail) if (record := _of_kind(line, "evaluation"))), {})
    found["before"], found["moved"] = first.get("score"), last.get("step") != first.get("step")  # a start alone leads nowhere
    if not last and before.get("step", math.inf) <= found["step"]:
        last = before  # the last one is no longer within reach of the end, and was seen when it was
    return found | {key: (last or first).get(key) for key in ("score", "low", "high")}


def _keys(lines: list[bytes]) -> frozenset[str]:
    """Names of what the last steps logged: not every step logs everything."""
    records = (record for line in reversed(lines) if (record := _of_kind(line, "step")))
    return frozenset(name for record in itertools.islice(records, 3) for name in record if len(name) < 200)


def whole_lines(block: bytes) -> list[bytes]:
    """The lines of a block that ended; the last may still be being written."""
    return block.split(b"\n")[:-1]


def _of_kind(line: bytes, kind: str) -> JsonDict:
    """The record of a line if it is of that kind, else nothing."""
    if f'"{kind}"'.encode() not in line:  # most lines are not, and reading them takes time
        return {}
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("kind") == kind else {}


def _spark(file: BinaryIO, size: int, head: bytes) -> list[float]:
    """Up to 40 values, evenly spread. Found by pattern: to read that many lines of 500 runs as JSON would take a second."""
    if size <= END:
        steps = _STEP.findall(head)
        chosen = steps if len(steps) <= SPARK else [steps[i * (len(steps) - 1) // (SPARK - 1)] for i in range(SPARK)]
    else:
        places = [position * (size - LINE) // (SPARK - 1) for position in range(SPARK)]
        windows = [os.pread(file.fileno(), LINE, place) for place in places]
        chosen = [found[0] for window in windows if (found := _STEP.search(window, window.find(b"\n") + 1))]
    return [value for line in chosen if (value := gain(line)) is not None]


def gain(line: bytes) -> float | None:
    """What a step earned, to four digits: the return of its episodes where there are any, else its reward."""
    found = dict(_GAIN.findall(line))
    try:
        value = float(found.get(b"episode_return") or found[b"reward"])
    except (KeyError, ValueError):
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else None


# -- values ----------------------------------------------------------------------------------------------------------------


def number(value: object) -> float | int | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def text(value: object, most: int = MOST_TEXT) -> str:
    """The beginning of a text, as much as a list can show."""
    return value[:most] if isinstance(value, str) else ""


def pair(value: object) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, list) and len(value) == 2 else (None, None)


def _has_folder(at: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:
        return False
