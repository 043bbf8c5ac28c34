"""Scores of several calls as one, and how long each answer's took."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from upslope.tasks.text import Problem, Scores
from upslope.tasks.turns import Scorer


def joined_scores(pieces: Sequence[Scores]) -> Scores:
    """Scores one behind the other. A component that only some of them have does not apply to the others, and is NaN there."""
    names = list(dict.fromkeys(name for piece in pieces for name in piece.components))

    def column(name: str) -> list[float]:
        return [value for piece in pieces for value in piece.components.get(name, [math.nan] * len(piece.reward))]

    listed, timed = any(piece.items for piece in pieces), bool(pieces) and all(piece.seconds for piece in pieces)
    return Scores(
        [value for piece in pieces for value in piece.reward],
        [right for piece in pieces for right in piece.correct],
        {name: column(name) for name in names},
        [worth for piece in pieces for worth in piece.items or [[]] * len(piece.reward)] if listed else [],
        [value for piece in pieces for value in piece.seconds] if timed else [],
    )


def one_of(scores: Scores, row: int) -> Scores:
    """The scores of one answer."""
    return Scores(
        [scores.reward[row]],
        [scores.correct[row]],
        {name: [column[row]] for name, column in scores.components.items()},
        [scores.items[row]] if scores.items else [],
        [scores.seconds[row]] if scores.seconds else [],
    )


def timed_scores(score: Scorer, problems: Sequence[Problem], responses: Sequence[str], each: bool) -> Scores:
    """What some answers are worth.

    Args:
        each: By a call for each answer, so that each has a time of its own: the one that the call itself tells, or else how long it
            took. Without it, all in one call, and only times that are told are known.
    """
    if not each:
        return score(problems, responses)
    found = []
    for problem, response in zip(problems, responses, strict=True):
        began = time.perf_counter()
        scores = score([problem], [response])
        took = time.perf_counter() - began
        found.append(scores if scores.seconds else Scores(scores.reward, scores.correct, scores.components, scores.items, [took]))
    return joined_scores(found)
