"""A rollout asked in one go for what a learner asks in two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from upslope.tasks.problem_text import text_of
from upslope.tasks.text import Problem
from upslope.types import Assignment, Choosing, KeptProblems, Offer, Order, RolloutRequest, Trajectories


def collect(rollout: Any, step: int, attempt: int = 0, tasks: int | None = None, choosing: Choosing | None = None) -> Trajectories:
    """The rows of a step, assigned and taken."""
    rollout.assign(RolloutRequest(step, attempt, tasks, choosing=choosing))
    return rollout.take(step, attempt)


def choose(
    rollout: Any, step: int, attempt: int, tasks: int, candidates: int, decide: Callable[[Offer], Order],
    kept: KeptProblems | None = None,
) -> Trajectories:  # fmt: skip
    """Those of a step whose tasks are chosen."""
    return collect(rollout, step, attempt, tasks, Choosing(candidates, decide, kept))


def answered(rollout: Any, problems: Sequence[Problem], step: int, attempt: int = 0, each: Sequence[int] = (), **order: Any) -> Any:
    """Rows of these problems."""
    numbers = tuple(-1 - place for place in range(len(problems)))
    samples = tuple(each) or (rollout.samples,) * len(problems)
    made = tuple(text_of(problem) for problem in problems)
    (whole,) = Assignment(step, attempt, numbers=numbers, samples=samples, made=made, **order).cut(1)
    rollout.asked |= {problem.id: problem for problem in problems}
    found = rollout.fulfilled(whole)
    rollout.heard(found.told)
    return found.rows


def same_rows(one: Trajectories, other: Trajectories) -> bool:
    """Whether two batches are the same to the bit, in all that a learner reads."""
    from upslope.types import pack_rows

    return _same(pack_rows(one), pack_rows(other))


def _same(one: Any, other: Any) -> bool:
    if hasattr(one, "equal"):
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))
