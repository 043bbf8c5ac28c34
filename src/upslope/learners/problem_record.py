"""The problems of a step as plain data: which were taken and why, what their answers earned, and which were made for later."""

from __future__ import annotations

import math

from upslope.plain_data import JsonDict
from upslope.types import Trajectories

LONGEST = 300
"""Characters of a prompt that are written down."""
MADE = ("made_from", "made_by", "generation")
"""Notes of a problem that was made from others."""


def problem_record(sampled: Trajectories, step: int) -> JsonDict | None:
    """A line on the problems of a step; none where nobody chose or made any.

    Args:
        sampled: All rows of the step, filtered out or not.
    """
    members: dict[int, list[int]] = {}
    for row, group in enumerate(sampled.group.tolist()):
        members.setdefault(group, []).append(row)
    notes = {group: sampled.info[rows[0]] for group, rows in members.items() if rows[0] < len(sampled.info)}
    if not sampled.made and not any("chosen" in note for note in notes.values()):
        return None
    paid, task = sampled.components.get("task", sampled.reward).tolist(), sampled.task.tolist()
    problems = [
        {
            "id": str(task[rows[0]]),
            "prompt": _cut(notes[group].get("prompt", "")),
            "answers": len(rows),
            "reward": _short(sum(paid[row] for row in rows) / len(rows)),
            "chosen": notes[group].get("chosen", {}),
            **_ancestry(notes[group]),
        }
        for group, rows in members.items()
        if group in notes
    ]
    made = [{"id": str(each.id), "prompt": _cut(each.prompt), **_ancestry(each.info)} for each in sampled.made]
    return {"step": step, "problems": problems, "made": made}


def _ancestry(note: JsonDict) -> JsonDict:
    found = {name: note[name] for name in MADE if name in note}
    if "made_from" in found:
        found["made_from"] = [_cut(each) for each in found["made_from"]]
    return found


def _cut(text: object) -> str:
    return str(text)[:LONGEST]


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
