"""Settings and knobs of every run as flat values, by which runs are told apart, filtered, sorted and listed in columns.

A folder has a thousand runs, and reading that many ``run.toml`` as TOML takes seconds. Our own files have a value per line: these
lines are read here, for display alone, and whatever else a file holds is passed over.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from upslope.board import safe_files
from upslope.board.index import Runs
from upslope.plain_data import JsonDict
from upslope.runtime.data_files import shown_name
from upslope.types.part_index import class_name

MOST_FACTS, MOST_KEY, MOST_TEXT = 1000, 120, 160
"""Of a run: values, and characters of a name and of a value."""
ABOVE = ("task", "model", "reward", "dataset", "test_data")
"""What is taken from above the first section."""
LEFT_OUT = ("paper", "on")
"""Tables of a method that say nothing of what it does."""
_HEADER = re.compile(r"^(\[\[?)([\w.\"-]+)\]\]?$")

Fact = str | int | float | bool


def read_facts(text: str) -> dict[str, Fact]:
    """``lr``, ``surrogate.high``, ``surrogate`` (its class) and so on, of the text of a ``run.toml``."""
    found: dict[str, Fact] = {}
    counts: dict[str, int] = {}
    section, prefix = "", ""
    for line in _whole_values(text):
        if line.startswith("["):
            header = _HEADER.match(line)
            section = header[2].replace('"', "") if header else "?"
            if header and header[1] == "[[":
                counts[section] = counts.get(section, -1) + 1
            prefix = _place(section, counts)
            continue
        name, given, written = line.partition(" = ")
        key = _key(section, prefix, name) if given and len(found) < MOST_FACTS else ""
        value = _value(written) if key and len(key) <= MOST_KEY else ""
        if value != "":
            found[key] = class_name(value) if name == "part" and isinstance(value, str) else value
    single = {_place(name, counts) + ".": f"{name.removeprefix('method.')}." for name, last in counts.items() if last == 0}
    return {_without_position(key, single): value for key, value in found.items()}


def _whole_values(text: str) -> Iterator[str]:
    """The lines, those of a list as one."""
    held: list[str] = []
    for line in text.split("\n"):
        if held:
            held.append(line.strip())
            if line == "]":
                yield " ".join(held)
                held = []
        elif line.endswith(" = ["):
            held = [line]
        else:
            yield line


def _place(section: str, counts: dict[str, int]) -> str:
    """A section of the method as a path; of several parts in one slot with its position."""
    place, path = "", ""
    for word in section.split("."):
        path = f"{path}.{word}".lstrip(".")
        place = f"{place}.{word}".lstrip(".")
        if path in counts:
            place += f".{counts[path]}"
    return place.removeprefix("method.")


def _key(section: str, prefix: str, name: str) -> str:
    if section == "":
        return name if name in ABOVE else ""
    if section == "settings":
        return name
    if not section.startswith("method.") or section.split(".")[1] in LEFT_OUT:
        return ""
    return prefix if name == "part" else f"{prefix}.{name}"


def _without_position(key: str, single: dict[str, str]) -> str:
    """In a slot that holds one part its position need not be said."""
    for place, plain in single.items():
        if f"{key}.".startswith(place):
            return (plain + f"{key}."[len(place) :]).rstrip(".")
    return key


@lru_cache(maxsize=20_000, typed=True)
def _value(text: str) -> Fact:
    if text.startswith("["):
        inside = [str(_value(each.strip())) for each in text.strip("[] ").split(",") if each.strip()]
        return ", ".join(inside)[:MOST_TEXT]
    if text.startswith('"'):
        try:
            return shown_name(_bare(str(json.loads(text))))[:MOST_TEXT]
        except ValueError:
            return text.strip('"')[:MOST_TEXT]
    if text in ("true", "false"):
        return text == "true"
    try:
        number = int(text)
    except ValueError:
        try:
            value = float(text)
        except ValueError:
            return text[:MOST_TEXT]
        return value if math.isfinite(value) else text[:MOST_TEXT]
    return number if abs(number) < 2**53 else text[:MOST_TEXT]


def _bare(text: str) -> str:
    """``reward-1a2b3c4d/reward.py:score@DIGEST`` without what only tells copies apart."""
    return re.sub(r"(?:[\w.-]+-[0-9a-f]{8}/)?([\w.-]+\.py:[\w.]+)@[0-9a-f]+", r"\1", text)


class Facts:
    """The facts of all runs, each read once. May be called from several threads."""

    def __init__(self, runs: Runs):
        self.runs = runs
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Any, str, dict[str, Fact]]] = {}

    def answer(self) -> JsonDict:
        """By method what most of its runs have, and by run what it has otherwise (null: what it has not)."""
        with self._lock:
            self._look()
            by_method: dict[str, list[tuple[str, dict[str, Fact]]]] = {}
            for run, (_, method, facts) in self._known.items():
                by_method.setdefault(method, []).append((run, facts))
        common = {method: _most(facts for _, facts in members) for method, members in by_method.items()}
        apart = {run: _apart(facts, common[method]) for method, members in by_method.items() for run, facts in members}
        return {"common": common, "runs": apart}

    def _look(self) -> None:
        seen = self.runs.summaries()
        for glance in seen:
            stamp, known = glance.stamps.get("run.toml"), self._known.get(glance.id)
            if known is None or known[0] != stamp:
                try:
                    with safe_files.folder(self.runs.root, *glance.parts) as at:
                        facts = read_facts(safe_files.read(at, "run.toml").decode("utf-8", "replace"))
                except (OSError, safe_files.TooLarge):
                    facts = {}
                self._known[glance.id] = (stamp, str(glance.plan.get("method", {}).get("name", "")), facts)
        for gone in set(self._known) - {glance.id for glance in seen}:
            del self._known[gone]


def _most(members: Iterator[dict[str, Fact]]) -> dict[str, Fact]:
    counts: dict[str, Counter[tuple[str, Fact]]] = {}
    for facts in members:
        for key, value in facts.items():
            counts.setdefault(key, Counter())[type(value).__name__, value] += 1
    return {key: each.most_common(1)[0][0][1] for key, each in counts.items()}


def _apart(facts: dict[str, Fact], common: dict[str, Fact]) -> dict[str, Fact | None]:
    found: dict[str, Fact | None] = {key: value for key, value in facts.items() if common.get(key) != value}
    return found | {key: None for key in common if key not in facts}
