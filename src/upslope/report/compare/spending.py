"""What runs have used up: samples, tokens and seconds, along each run and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from upslope.report.compare.gathering import Field, Trained
from upslope.report.curves import number
from upslope.runtime.statistics import interquartile_mean

NOTABLE = 1.05
"""Runs that used more than this many times as much as others are told of."""


def spent_at(run: Trained, axis: str) -> np.ndarray:
    """How much of an axis was used up at each evaluation."""
    at = np.array([each["step"] for each in run.evaluations], dtype=float)
    if axis == "steps":
        return at
    used = np.array([_used(record, run, axis) for record in run.steps], dtype=float)
    total = np.concatenate([[0.0], np.cumsum(used)])
    return total[np.clip(at.astype(int), 0, len(used))]


def _used(record: Mapping[str, Any], run: Trained, axis: str) -> float:
    value = record.get(axis)
    if value is None and axis == "samples":  # runs of before it was recorded
        sizes = run.settings
        value = record.get("tokens") if run.control else sizes["tasks_per_step"] * sizes["samples_per_task"]
    return float(value or 0.0)


def at_equal_spending(field: Field) -> list[str]:
    """For runs that are not ranked because their budgets differ: their scores where all had used as much, in a note for each task.

    It ranks nobody: a run that goes on from there has not yet lowered its learning rate.
    """
    notes = []
    for task in field.tasks if field.obstacles else []:
        runs = [run for run in field.runs(task) if len(run.evaluations) > 1]
        axis = "samples" if runs and runs[0].control else "tokens"
        ends = [float(spent_at(run, axis)[-1]) for run in runs]
        if not ends or not min(ends) or max(ends) <= NOTABLE * min(ends):
            continue
        told = ", ".join(
            f"{each.label} {number(interquartile_mean([_score_at(run, axis, min(ends)) for run in some]))}"
            for each in field.contenders
            if (some := [run for run in each.on(task) if len(run.evaluations) > 1])
        )
        where = f" on {task}" if len(field.tasks) > 1 else ""
        notes.append(
            f"At equal {axis}{where} ({min(ends):,.0f}, as far as all went): {told}. This is no ranking: runs that go on from "
            "there have not yet lowered their learning rate as far."
        )
    return notes


def _score_at(run: Trained, axis: str, amount: float) -> float:
    return float(np.interp(amount, spent_at(run, axis), [each["score"] for each in run.evaluations]))
