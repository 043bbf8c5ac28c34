"""Problems as text, for what keeps them and for other processes."""

from __future__ import annotations

import ast

from upslope.tasks.text import Problem


def text_of(problem: Problem) -> str:
    """A problem as text, from which `problem_of` makes the same again: Python's way to write plain data."""
    return repr((problem.prompt, problem.answer, dict(problem.info), list(problem.messages), sorted(problem.unread)))


def problem_of(text: str) -> Problem:
    """The problem that `text_of` wrote."""
    prompt, answer, info, messages, unread = ast.literal_eval(text)
    return Problem(prompt, answer, info, tuple(messages), frozenset(unread))
