"""Lessons: all that a process needs to make the updates of a step whose rows another process has gathered.

Sampling, rewards, judges and data parts have side effects and belong to one process. What is left, from the first pass to the last
update, is a function of the rows, the states of parts and the policy: each process of a team goes through it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from upslope.objective.base import State
from upslope.plain_data import JsonDict
from upslope.types import Trajectories, pack_rows, rows_of


@dataclass(frozen=True, eq=False)
class Lesson:
    """What is learned in a step.

    Fields:
        states: What parts remember before it, by path.
        rows: Those that passed the early filters, with what data parts added.
        sampled: All that were sampled.
    """

    step: int
    states: dict[str, State]
    rows: Trajectories
    sampled: Trajectories


def packed_lesson(lesson: Lesson) -> JsonDict:
    """The lesson as nested dicts of tensors and plain data; `unpacked_lesson` undoes it."""
    same = lesson.rows is lesson.sampled
    return {
        "step": lesson.step,
        "states": lesson.states,
        "rows": _packed(lesson.rows),
        "sampled": None if same else _packed(lesson.sampled),
    }


def unpacked_lesson(packed: Mapping[str, Any], inputs: Callable[..., Any], device: torch.device | str) -> Lesson:
    """What `packed_lesson` packed, on a device; ``inputs`` makes what only the policy looks at."""
    rows = _unpacked(packed["rows"], inputs, device)
    sampled = rows if packed["sampled"] is None else _unpacked(packed["sampled"], inputs, device)
    return Lesson(packed["step"], packed["states"], rows, sampled)


def _packed(rows: Trajectories) -> JsonDict:
    return {"columns": pack_rows(rows), "now": rows.now, "aside": {name: _packed(each) for name, each in rows.aside.items()}}


def _unpacked(packed: Mapping[str, Any], inputs: Callable[..., Any], device: torch.device | str) -> Trajectories:
    aside = {name: _unpacked(each, inputs, device) for name, each in packed["aside"].items()}
    return rows_of(packed["columns"], inputs).to(device).replace(now=packed["now"], aside=aside)
