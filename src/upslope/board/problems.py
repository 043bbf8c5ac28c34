"""The problems a run chose and made, for the page. Prompts come from tasks and models: text, never trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from upslope.board import safe_files
from upslope.board.run_summary import number, text, whole_lines
from upslope.plain_data import JsonDict

MOST = 16 * safe_files.MIB
"""Bytes at the end of ``problems.jsonl`` that are read."""
MOST_OF_STEP, MOST_MADE, MOST_FACTS, MOST_ANCESTORS = 512, 500, 16, 8
"""Problems of a step, problems made in all, reasons for a choice, and ancestors of a problem that are passed on."""


def problems(root: Path, parts: tuple[str, ...], step: int | None) -> JsonDict:
    """The steps that say which problems they took; those of one step (the last, unless asked); and all that were made.

    Of each problem made: what it was made from, how often it was taken since and what was said of it the last time. Those taken
    most often come first, then the youngest.
    """
    lines = _lines(root, parts)
    found = next((line for line in reversed(lines) if step is None or line["step"] == step), None)
    made = _made(lines)
    return {
        "steps": [line["step"] for line in lines],
        "step": None if found is None else found["step"],
        "problems": [] if found is None else [_problem(each) for each in _tables(found.get("problems"))[:MOST_OF_STEP]],
        "made": sorted(made, key=lambda each: (each["taken"], each["step"]), reverse=True)[:MOST_MADE],
        "made_in_all": len(made),
    }


def _lines(root: Path, parts: tuple[str, ...]) -> list[JsonDict]:
    try:
        with safe_files.folder(root, *parts) as at, safe_files.open_file(at, "problems.jsonl") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MOST))
            found = whole_lines(file.read(MOST))[int(size > MOST) :]
    except OSError:
        return []
    records = (_record(line) for line in found)
    return [record for record in records if isinstance(record, dict) and _is_step(record.get("step"))]


def _record(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12


def _tables(value: object) -> list[JsonDict]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _made(lines: list[JsonDict]) -> list[JsonDict]:
    found: dict[str, JsonDict] = {}
    for line in lines:
        for each in _tables(line.get("problems")):
            if (known := found.get(text(each.get("id")))) is not None:
                told = _problem(each)
                known |= {"taken": known["taken"] + 1, "chosen": told["chosen"], "reward": told["reward"]}
        for each in _tables(line.get("made")):
            if (name := text(each.get("id"))) and name not in found:
                found[name] = {"prompt": text(each.get("prompt")), "step": line["step"], "taken": 0, "chosen": {}, "reward": None}
                found[name] |= _ancestry(each)
    return list(found.values())


def _problem(table: JsonDict) -> JsonDict:
    answers, reward = number(table.get("answers")), number(table.get("reward"))
    chosen = table.get("chosen")
    facts = list(chosen.items())[:MOST_FACTS] if isinstance(chosen, dict) else []
    why = {text(name): text(value) if isinstance(value, str) else number(value) for name, value in facts}
    return {"prompt": text(table.get("prompt")), "answers": answers, "reward": reward, "chosen": why, **_ancestry(table)}


def _ancestry(table: JsonDict) -> JsonDict:
    before = table.get("made_from")
    before = [text(each) for each in before[:MOST_ANCESTORS]] if isinstance(before, list) else []
    return {"made_from": before, "made_by": text(table.get("made_by")), "generation": number(table.get("generation"))}
