"""Whether anything was learned at all: each method's end against its own start, said before any method is held against another.

Over seeds the interval of the mean change is Student's. It is never narrower than what the problems or episodes of an evaluation
leave open (Newcombe's interval of a difference for each run, averaged as the change is): runs that all score the same have width
too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from upslope.plain_data import JsonDict
from upslope.report.compare.gathering import Field, Trained
from upslope.runtime.statistics import Interval, difference_interval, student_quantile, wilson_interval

Outcome = Literal["learned", "got worse", "not told from its start"]


@dataclass(frozen=True)
class Learned:
    """A method's runs on a task, their end against their start."""

    label: str
    task: str
    before: float
    after: float
    change: float
    low: float
    high: float
    """95% interval of the change."""
    rose: int
    """Runs that ended above their start."""
    runs: int
    outcome: Outcome


def measure_learning(field: Field) -> list[Learned]:
    """Every method on every task, in the order of the field."""
    return [_learned(each.label, task, runs) for task in field.tasks for each in field.contenders if (runs := each.on(task))]


def learning_headline(found: Sequence[Learned]) -> str:
    """What was learned, in a line over all methods and tasks."""
    several, on = len({each.task for each in found}) > 1, len({each.label for each in found}) > 1
    count = {outcome: sum(each.outcome == outcome for each in found) for outcome in ("learned", "got worse")}
    rose, runs = sum(each.rose for each in found), sum(each.runs for each in found)
    who = "every method" if on else found[0].label
    if several:
        who += " on every task"
    if count["learned"] == len(found):
        return f"{who[0].upper() + who[1:] if on else who} learned."
    if count["got worse"] == len(found):
        return f"Nothing was learned: {who} got worse ({runs - rose} of {runs} runs ended no better than they began)."
    if not count["learned"]:
        worse = [_place(each, several) for each in found if each.outcome == "got worse"]
        told = f"; {', '.join(worse)} got worse" if worse else ""
        return f"Nothing was learned: no method ended above its start beyond noise ({rose} of {runs} runs rose{told})."
    words: dict[Outcome, str] = {
        "learned": "learned", "got worse": "got worse", "not told from its start": "cannot be told from the start",
    }  # fmt: skip
    named = {outcome: [_place(each, several) for each in found if each.outcome == outcome] for outcome in words}
    parts = [f"{', '.join(some)} {words[outcome]}" for outcome, some in named.items() if some]
    return f"{'; '.join(parts)}."


def signed(value: float) -> str:
    return f"{value:+.3f}" if abs(value) < 10 else f"{value:+.1f}"


def _place(each: Learned, several: bool) -> str:
    return f"{each.label} on {each.task}" if several else each.label


def _learned(label: str, task: str, runs: Sequence[Trained]) -> Learned:
    changes = np.array([run.after - run.before for run in runs])
    mean = float(changes.mean())
    each = [_interval(run) for run in runs]
    # Of the mean of independent changes, one interval each.
    below = math.sqrt(sum((change - one.low) ** 2 for change, one in zip(changes, each, strict=True))) / len(runs)
    above = math.sqrt(sum((one.high - change) ** 2 for change, one in zip(changes, each, strict=True))) / len(runs)
    over_seeds = student_quantile(len(runs) - 1) * float(changes.std(ddof=1)) / math.sqrt(len(runs)) if len(runs) > 1 else 0.0
    low, high = mean - max(below, over_seeds), mean + max(above, over_seeds)
    outcome: Outcome = "learned" if low > 0 else "got worse" if high < 0 else "not told from its start"
    ends = (float(np.mean([run.before for run in runs])), float(np.mean([run.after for run in runs])))
    return Learned(label, task, *ends, mean, low, high, int((changes > 0).sum()), len(runs), outcome)


def _interval(run: Trained) -> Interval:
    """Of a run's change, over the problems or episodes it was evaluated on."""
    if not run.evaluations:
        return Interval(run.after - run.before, run.after - run.before)
    first, last = run.evaluations[0], run.evaluations[-1]
    return difference_interval(run.before, _of(run.before, first, run), run.after, _of(run.after, last, run))


def _of(score: float, record: JsonDict, run: Trained) -> Interval:
    """The interval of a score in the log; of an accuracy it is worked out here, as older logs may have one without width."""
    if not run.control and record.get("problems"):
        problems = int(record["problems"])
        return wilson_interval(min(problems, max(0, round(score * problems))), problems)
    low, high = record.get("low"), record.get("high")
    known = isinstance(low, (int, float)) and isinstance(high, (int, float)) and low <= score <= high
    return Interval(float(low), float(high)) if known else Interval(score, score)  # type: ignore[arg-type]
