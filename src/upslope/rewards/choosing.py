"""Which reward suits data that have answers and were given none: the one that finds most of some sampled answers right."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass

from upslope.rewards.extract import expected_letter, expected_text, options_of, whole_number
from upslope.rewards.spec import built_in
from upslope.tasks.text import FULL_MARKS, Problem, RewardRows

SAMPLED = 20
SEED = 40_000
"""Of the problems and the sampling: the choice depends on the model and the data, not on a run's seed, so that seeds compare."""
SHORT = 5
"""Words of an answer that may be looked for in a longer response."""


@dataclass(frozen=True)
class Choice:
    """A reward, and why."""

    reward: str
    found: dict[str, int]
    """By reward: how many sampled answers it would have called right."""
    sampled: int
    kind: str
    """What the expected answers are, in words."""

    def remark(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.found.items())
        why = "" if self.found[self.reward] else f", since the expected answers are {self.kind}"
        return (
            f"no reward was given. Of {self.sampled} sampled answers these would find right: {counts}. Taking {self.reward}{why}; "
            "--reward NAME takes another."
        )


def choose(problems: Sequence[Problem], responses: Sequence[str]) -> Choice:
    """The reward for these problems, after a sampled response to each.

    Counted are all that extract an answer; chosen is among those that fit what the expected answers are: in a sum's solution
    nearly every number stands somewhere, so ``contains`` would win where it should not.
    """
    kind, fitting = kind_of_answers(problems)
    rows = RewardRows.of(problems, responses)
    candidates = dict.fromkeys([*fitting, "exact", "number", "boxed", "choice", "contains"])
    found = {}
    for name in candidates:
        reward = built_in(name)
        assert reward is not None
        values, _ = rows.pay(reward)
        found[name] = sum(value >= FULL_MARKS for value in values)
    best = max(fitting, key=lambda name: found[name])  # the first of those that find as many
    return Choice(best, found, len(responses), kind)


def kind_of_answers(problems: Sequence[Problem]) -> tuple[str, list[str]]:
    """What the expected answers are in words, and the rewards that fit them, the most fitting first."""
    answers = [expected_text(problem.answer) for problem in problems]
    formulas = ["math-verify"] if importlib.util.find_spec("math_verify") else []
    if all(re.fullmatch(r"\(?[A-J]\)?[.)]?", answer) for answer in answers):
        return "single letters", ["choice", "exact"]
    if all(expected_letter(problem.answer, options_of(problem.info)) and options_of(problem.info) for problem in problems):
        return "options", ["choice", "exact"]
    if all("\\boxed" in problem.answer for problem in problems):
        return "boxed", ["boxed", *formulas]
    if all(whole_number(answer) for answer in answers):
        return "numbers", ["number", "exact", "boxed"]
    if formulas and any(re.search(r"\\[a-z]+|[\w)]\s*\^", answer) for answer in answers):
        return "formulas", ["math-verify", "boxed", "exact"]
    if all(len(answer.split()) <= SHORT for answer in answers):
        return "short texts", ["contains", "exact", "boxed"]
    return "long texts", ["exact", "contains"]
