"""What a task can say of its problems beside prompt and score, the words for it, and the refusal of methods that need more.

A word is *given* where every training problem has what it stands for. ``"hints": []`` says of a problem that it has none, so it
does not stand in the way of the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.pairs import as_answers, as_label
from upslope.tasks.revisions import as_pieces

if TYPE_CHECKING:
    from upslope.tasks.text import Problem, TextTask

LOOKED_AT = 16
"""Training problems that are drawn of a task that makes them on the spot, to see what they have."""
SEVERAL_CATEGORIES = "several categories"
"""What a part needs that compares categories of problems; it goes with ``"categories"``, which a task of one also gives."""
LOOKED_AT_FOR_ANOTHER = (LOOKED_AT, 256)
"""Training problems that are drawn, and then once more, to find a second category."""

CURES: Mapping[str, str] = {
    "answers": 'Give every line an "answer".',
    "solutions": 'Give every line a "solution" or an "answer".',
    "hints": 'Give every line "hints", a list of texts from weak to strong, [] where there is none.',
    "documents": 'Give every line "documents", a list of texts.',
    "categories": 'Give every line a "category", a text.',
    "levels": 'Give every line a "difficulty", a number that is larger for harder problems.',
    "pairs": 'Give every line "chosen" and "rejected", answers in text or lists of them.',
    "labels": 'Give every line a "completion" and a "label", true or false; or "chosen" and "rejected".',
    "revisions": 'Give every line an "answer" and "revisions", a list of pieces such as {"generated": "It is a cat.", '
    '"revised": "It is a dog.", "severity": 1, "error": "perception"}.',
    "variants": "there are no harder and easier problems to a given one; take a task that makes its own.",
    "comparisons": "nobody says which of two answers is better; give --judge RUN or URL, or a task of your own with 'compare'.",
}
"""What a task may give, and how a file of problems comes to give it."""
KEYS: Mapping[str, str] = {
    "answers": "answer", "solutions": "solution", "hints": "hints", "documents": "documents", "categories": "category",
    "levels": "difficulty", "pairs": "chosen", "labels": "completion", "revisions": "revisions",
}  # fmt: skip
"""The key of a line that each word is about."""
FURTHER = ("solution", "hints", "documents", "category", "difficulty", "chosen", "rejected", "completion", "label",
           "revisions")  # fmt: skip
"""Keys of a line that say more of a problem; they stay among its ``info``."""


# -- reading a value -----------------------------------------------------------------------------------------------------------


def as_text(value: Any) -> str | None:
    """A text, or a number as one; nothing for anything else."""
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None


def as_texts(value: Any) -> tuple[str, ...] | None:
    """A list of texts, also one written as JSON, as tables without lists hold it; nothing for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    texts = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    return tuple(value) if texts else None


def as_number(value: Any) -> float | None:
    """A finite number, also one written as text; nothing for anything else."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


READERS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "solution": (as_text, "text"),
    "hints": (as_texts, 'a list of texts, from weak to strong, as in ["It ends in a.", "cba"]'),
    "documents": (as_texts, 'a list of texts, as in ["Rule 1: ..."]'),
    "category": (as_text, "text"),
    "difficulty": (as_number, "a number, larger for harder problems"),
    "chosen": (as_answers, "an answer in text, or a list of such"),
    "rejected": (as_answers, "an answer in text, or a list of such"),
    "completion": (as_answers, "an answer in text"),
    "label": (as_label, "true or false"),
    "revisions": (
        as_pieces,
        'a list of pieces with "generated" and "revised" text, a "severity" from 1 (worst) to 4 (right) and an '
        '"error", "perception" or another; neither text may be empty as a whole',
    ),
}
"""How the value of each further key is read, and what it must be."""


def problem_with(key: str, value: Any) -> str:
    """What is wrong with the value of a further key, in words; nothing if it can be used. A missing value is no mistake."""
    read, wanted = READERS[key]
    return "" if value is None or value == "" or read(value) is not None else f"must be {wanted}, but is {str(value)[:40]!r}"


# -- what is given -------------------------------------------------------------------------------------------------------------

_HAS: Mapping[str, Callable[[Any, Any], bool]] = {
    "answers": lambda task, problem: bool(problem.answer.strip()),
    "solutions": lambda task, problem: bool(problem.solution.strip()),
    "hints": lambda task, problem: bool(task.hints(problem)) or problem.info.get("hints") is not None,
    "documents": lambda task, problem: bool(problem.documents),
    "categories": lambda task, problem: bool(problem.category),
    "levels": lambda task, problem: not math.isnan(problem.difficulty),
    "pairs": lambda task, problem: task.pair(problem) is not None,
    "labels": lambda task, problem: task.pair(problem) is not None or problem.wanted is not None,
    "revisions": lambda task, problem: task.revision(problem) is not None,
}


def has(task: TextTask, problem: Problem, word: str) -> bool:
    """Whether a problem has what a word stands for, or says that it has none of it."""
    return _HAS[word](task, problem)


def given_by(task: TextTask, problems: Iterable[Problem]) -> frozenset[str]:
    """What all of these problems of a task have; what none of them really has is not given."""
    problems = list(problems)
    found: set[str] = set()
    for word in _HAS if problems else ():
        # Two answers of which one is better are two with a label: they need not be looked at again.
        if (word == "labels" and "pairs" in found) or all(has(task, problem, word) for problem in problems):
            found.add(word)
    if not any(task.hints(problem) for problem in problems):
        found.discard("hints")
    return frozenset(found)


def check_given(task: TextTask, needs: Mapping[str, str], method: str) -> None:
    """Refuses a method on a task that does not give what it needs.

    Args:
        needs: words, each with the part that needs it.
        method: its name, for the message.

    Raises:
        TaskError: naming the task, or the first line of its file that lacks it, and what to do.
    """
    if not needs:
        return
    given = task.gives()
    for word in (each for each in CURES if each in needs and each not in given):
        who, place = f"{method} needs {word} ({needs[word]})", task.first_without(word)
        if place:
            raise TaskError(f'{place}: no "{KEYS[word]}", and {who}. {CURES[word]}')
        raise TaskError(f"{who}, and {task.name!r} gives none; 'upslope tasks' says which tasks do. In a file: {CURES[word]}")
    if SEVERAL_CATEGORIES in needs:
        _check_categories_differ(task, f"{method} needs {SEVERAL_CATEGORIES} ({needs[SEVERAL_CATEGORIES]})")


def _check_categories_differ(task: TextTask, who: str) -> None:
    """Refuses a task of whose problems all are of one category, as far as a few hundred show."""
    rng, seen = np.random.default_rng(0), set[str]()
    for count in LOOKED_AT_FOR_ANOTHER:
        seen |= {problem.category for problem in task.sample(count, "train", rng)}
        if len(seen) > 1:
            return
    raise TaskError(
        f"{who}, and every problem of {task.name!r} that was looked at is of {seen.pop()!r}. Mix several tasks, as in "
        f"--task '{task.name}+sort', or in a file give lines different values of \"category\"."
    )
