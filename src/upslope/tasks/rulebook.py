"""A rulebook to learn by heart: facts, behaviours and conditions of a controllable depth, and questions about them (CC-Gen).

A prompt asks without the rulebook; what it says stands in the documents of the problems. So a policy can be asked what it has read
(``cap-cpt``), or given the rules while it practises and not afterwards (``poro``). The rulebook of a seed is always the same.

Four kinds of rules, each named by a letter, and what is asked of them:

======== =========================== ==================== =======================================================
kind      statement                   question             answer
======== =========================== ==================== =======================================================
fact      ``fa:72``                   ``fa=``              ``72``
behaviour ``bc:+3``                   ``bc9=``             ``2``, the last digit of 9 + 3
condition ``cd:(0>4?x:y)``            ``cd7=``             ``x``, since the digit in place 0 is above 4
nested    ``ne:(0>4?(1>6?x:y):...)``  ``ne72=``            ``y``, by as many digits as conditions are nested
======== =========================== ==================== =======================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.embedded import EmbeddedTask
from upslope.tasks.letters import DIGITS, LETTERS
from upslope.tasks.text import Problem, split_of

RuleKind = Literal["fact", "behaviour", "condition", "nested"]
KINDS: tuple[RuleKind, ...] = ("fact", "behaviour", "condition", "nested")
ACTIONS = LETTERS[:8]
"""What a condition may decide for."""
SHOWN_INPUTS = 3
"""Worked examples of a behaviour among the documents."""


@dataclass(frozen=True)
class Branch:
    """A condition: the digit in a place is above a bound, or not."""

    place: int
    above: int
    yes: Branch | str
    no: Branch | str

    def __str__(self) -> str:
        return f"({self.place}>{self.above}?{self.yes}:{self.no})"

    def path(self, digits: str) -> tuple[list[str], str]:
        """The conditions that hold for these digits, from the outermost on, and what they decide for."""
        holds = int(digits[self.place]) > self.above
        said = f"{self.place}>{self.above}" if holds else f"{self.place}<{self.above + 1}"
        then = self.yes if holds else self.no
        further, action = ([], then) if isinstance(then, str) else then.path(digits)
        return [said, *further], action

    def leaves(self) -> Iterator[tuple[list[str], str]]:
        """Every combination of conditions, and what it decides for."""
        for said, then in ((f"{self.place}>{self.above}", self.yes), (f"{self.place}<{self.above + 1}", self.no)):
            for further, action in [([], then)] if isinstance(then, str) else then.leaves():
                yield [said, *further], action


@dataclass(frozen=True)
class Rule:
    """A rule of a rulebook; `body` is a number as text, a number to add, or a condition."""

    kind: RuleKind
    letter: str
    body: str | int | Branch
    inputs: int
    """Digits of a question about it."""

    @property
    def name(self) -> str:
        return self.kind[0] + self.letter

    @property
    def statement(self) -> str:
        return f"{self.name}:{'+' if isinstance(self.body, int) else ''}{self.body}"

    def answer(self, digits: str) -> str:
        if isinstance(self.body, Branch):
            return self.body.path(digits)[1]
        return str((int(digits) + self.body) % 10) if isinstance(self.body, int) else self.body

    def hints(self, digits: str) -> tuple[str, ...]:
        """The rule, then what holds of its conditions, and at last the answer."""
        said = self.body.path(digits)[0] if isinstance(self.body, Branch) else []
        return (self.statement, *(",".join(said[: end + 1]) for end in range(len(said))), self.answer(digits))

    def documents(self) -> list[str]:
        """What the rulebook says of it, said again, and worked out; no question of the held-out splits is answered."""
        if isinstance(self.body, Branch):
            return [self.statement, *(f"{self.name}{','.join(said)}:{action}" for said, action in self.body.leaves())]
        if isinstance(self.body, int):
            asked = [f"{self.name}{digit}=" for digit in DIGITS]
            shown = [prompt for prompt in asked if split_of(prompt) == "train"][:SHOWN_INPUTS]
            return [self.statement, f"{self.name} adds {self.body}", *(f"{prompt}{self.answer(prompt[2])}" for prompt in shown)]
        asked = [f"{self.name}={self.body}"] if split_of(f"{self.name}=") == "train" else []
        return [self.statement, f"{self.body} is {self.name}", *asked]


@dataclass(frozen=True)
class RulebookTask(EmbeddedTask):
    """Questions about a rulebook that the prompt does not show: ``fa=`` -> ``72``, ``ne72=`` -> ``b``.

    The category of a problem is the kind of rule it asks for, its difficulty 1, 2 and 3 for facts, behaviours and conditions, and
    2 + `depth` for nested ones. Its documents are the statements of the rule, said again and worked out branch by branch; of a fact
    those of all facts, since a fact that is held out has no other question. Hints are the rule that applies, then the conditions
    that hold, then the answer.

    Fields:
        rules: of each kind. More is more to learn by heart.
        depth: conditions inside of each other. 1 leaves nested rules out; each one more doubles the branches.
        level: ask for one kind of rule only, 1 for facts to 4 for nested conditions; 0 asks for all alike.
        seed: of the rulebook. Another one has other facts, bounds and branches.
    """

    kind: ClassVar[str] = "rulebook"
    about: ClassVar[str] = "Questions about a rulebook that is not in the prompt: bc9= -> 2, where bc:+3."
    grows_by: ClassVar[str] = "level"

    rules: int = 8
    depth: int = 2
    level: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        self._within(rules=(1, 26), depth=(1, 4), level=(0, 4), seed=(0, 2**31 - 1))
        if self.level == 4 and self.depth < 2:
            raise TaskError("rulebook: level=4 asks for nested conditions, and depth=1 has none. Give depth=2 or more.")

    @classmethod
    def all_give(cls) -> frozenset[str]:
        return super().all_give() | {"documents"}

    def longest_answer(self) -> int:
        return 2

    @property
    def kinds(self) -> tuple[RuleKind, ...]:
        """The kinds of rules that are asked for."""
        there = KINDS if self.depth > 1 else KINDS[:3]
        return there if self.level == 0 else (there[self.level - 1],)

    @cached_property
    def book(self) -> dict[RuleKind, list[Rule]]:
        """All rules by kind. Those of a kind do not depend on how many others there are, nor on how deep they are."""
        from upslope.runtime.seeding import numpy_generator

        deep = {"fact": 0, "behaviour": 1, "condition": 1, "nested": self.depth}
        return {
            kind: [
                _rule(kind, letter, deep[kind], numpy_generator(self.seed, "rulebook", kind, letter))
                for letter in LETTERS[: self.rules]
            ]
            for kind in (KINDS if self.depth > 1 else KINDS[:3])
        }

    def text(self) -> str:
        """The rulebook as one would put it into a prompt."""
        return "\n".join(rule.statement for rules in self.book.values() for rule in rules)

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        kinds = rng.integers(0, len(self.kinds), count).tolist()
        letters = rng.integers(0, self.rules, count).tolist()
        inputs = rng.integers(0, 10, (count, self.depth)).tolist()
        for kind, letter, digits in zip(kinds, letters, inputs, strict=True):
            rule = self.book[self.kinds[kind]][letter]
            yield self._question(rule, "".join(map(str, digits[: rule.inputs])))

    def _question(self, rule: Rule, digits: str) -> Problem:
        level = KINDS.index(rule.kind) + 1
        difficulty = 2 + self.depth if rule.kind == "nested" else level
        info = {"category": rule.kind, "difficulty": difficulty, "documents": self._documents[rule.name]}
        return Problem(f"{rule.name}{digits}=", rule.answer(digits), info)

    @cached_property
    def _documents(self) -> dict[str, list[str]]:
        facts = [text for rule in self.book["fact"] for text in rule.documents()]
        return {rule.name: facts if rule.kind == "fact" else rule.documents() for rules in self.book.values() for rule in rules}

    def hints(self, problem: Problem) -> tuple[str, ...]:
        """The rule that applies, what holds of its conditions, and the answer; nothing for a question about no rule of the book."""
        name, digits = problem.prompt[:2], problem.prompt[2:-1]
        rule = next((rule for rules in self.book.values() for rule in rules if rule.name == name), None)
        return rule.hints(digits) if rule is not None and len(digits) == rule.inputs and digits.isdigit() == bool(digits) else ()

    def next_size(self, size: int, larger: int) -> int:
        sizes = [0, 1, 2, 3, *([2 + self.depth] if self.depth > 1 else [])]  # 0: there is none
        place = sizes.index(size) + larger if size in sizes else 0
        return sizes[place] if place < len(sizes) else 0

    def of_size(self, size: int) -> RulebookTask:
        level = 4 if size == 2 + self.depth and self.depth > 1 else size
        if not 1 <= level <= 4 or (level == 4 and size != 2 + self.depth):
            raise TaskError(f"rulebook: there are no questions of size {size} with depth={self.depth}.")
        return replace(self, hardest=0, level=level)


def _rule(kind: RuleKind, letter: str, depth: int, rng: np.random.Generator) -> Rule:
    body: Any
    if kind == "fact":
        body = f"{rng.integers(10, 100)}"
    elif kind == "behaviour":
        body = int(rng.integers(1, 10))
    else:
        body = _tree(0, depth, rng)
    return Rule(kind, letter, body, depth)


def _tree(place: int, depth: int, rng: np.random.Generator) -> Branch:
    """A condition on the digit in this place, with others on the next digits inside of both its branches."""
    above = int(rng.integers(2, 7))
    if place == depth - 1:
        # Two different actions, or the condition would decide nothing.
        yes, no = (ACTIONS[action] for action in rng.permutation(len(ACTIONS))[:2])
        return Branch(place, above, yes, no)
    return Branch(place, above, _tree(place + 1, depth, rng), _tree(place + 1, depth, rng))
