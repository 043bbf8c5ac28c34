"""What the pages of claims say, as data: judged lines by method, and the first curves, small enough to be drawn beside a name.

The pages are written by ``make claims`` with their numbers beside them in ``claims/data``; here they are only read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

POINTS = 32
"""Points of a small curve."""
LINES = 5
"""Curves that can be told apart in a small picture."""
JUDGED = re.compile(
    r"^- (?P<method>[\w.+-]+)(?P<setting> \S+=\S+)?: (?P<words>.*?): "
    r"\*\*(?P<verdict>held|not shown at this scale|did not hold)\*\*(?: \((?P<numbers>.*)\))?$"
)


def claim_records(folder: Path) -> dict[str, dict[str, Any]]:
    """For each page: its ``title``, the lines that were ``judged`` by method, whether it has a ``picture``, and a ``curve``."""
    found = {}
    for page in sorted(folder.glob("*.md")):
        title, judged = _read(page)
        record: dict[str, Any] = {"title": title, "judged": judged, "picture": page.with_suffix(".png").exists()}
        data = folder / "data" / f"{page.stem}.json"
        if data.exists() and (curve := _curve(json.loads(data.read_text(encoding="utf-8")), list(judged))):
            record["curve"] = curve
        found[page.stem] = record
    return found


def _read(page: Path) -> tuple[str, dict[str, list[dict[str, str]]]]:
    title, heading = page.stem, ""
    judged: dict[str, list[dict[str, str]]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            title = line[2:]
        elif line.startswith("## "):
            heading = line[3:]
        elif said := JUDGED.match(line):
            about, words = said["method"], said["words"]
            if said["setting"] and page.stem == about:  # its own page varies it
                words = f"with{said['setting']}, {words}"
            elif said["setting"]:
                about += said["setting"]
            told = {"where": heading, "words": words, "verdict": said["verdict"], "numbers": said["numbers"] or ""}
            judged.setdefault(about, []).append(told)
    return title, judged


def _curve(data: Any, judged: list[str]) -> dict[str, Any] | None:
    """The first curve of the first condition, its lines from 0 to 100 between the lowest and the highest value seen."""
    if not isinstance(data, dict) or not data.get("conditions"):
        return None
    condition, variants = next(iter(data["conditions"].items()))
    names = next((list(each["curves"]) for each in variants.values() if each.get("curves")), [])
    if not names:
        return None
    lines = {label: each["curves"][names[0]]["middle"] for label, each in variants.items() if names[0] in each.get("curves", {})}
    wanted = [label for label in lines if label in judged] + [label for label in lines if label not in judged]
    kept = set(wanted[:LINES])
    lines = {label: _thinned(line) for label, line in lines.items() if label in kept}
    values = [value for line in lines.values() for value in line if value is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    room = (high - low) or 1.0
    return {
        "of": names[0].replace("exact_", "").replace("_", " "),
        "where": condition,
        "low": float(f"{low:.3g}"),
        "high": float(f"{high:.3g}"),
        "lines": {
            label: [None if value is None else round(100 * (value - low) / room) for value in line] for label, line in lines.items()
        },
    }


def _thinned(line: list[float | None]) -> list[float | None]:
    if len(line) <= POINTS:
        return line
    return [line[round(place * (len(line) - 1) / (POINTS - 1))] for place in range(POINTS)]
