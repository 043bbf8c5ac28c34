"""Small text tasks that are made on the spot, for a character-level model of a million parameters.

Prompts are as short as they can be and still tell the tasks apart, because a prompt is computed anew in every step. The task
draws whole batches with numpy; what does not belong to the wanted split is drawn again.
"""

from __future__ import annotations

import dataclasses
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from upslope.errors import TaskError
from upslope.tasks.text import Problem, Scores, Split, TextTask, split_of

DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALPHABET = DIGITS + LETTERS + "+-*/=()[]{}<>,:? "
"""Every character a prompt or an answer of these tasks may use."""

_STALE_ROUNDS = 20
"""Rounds of drawing that may bring nothing new before a split counts as used up. A round has 256 draws or more."""


@dataclass(frozen=True)
class EmbeddedTask(TextTask):
    """A generator of problems with a check. Reward is 1 for a right answer and 0 otherwise."""

    kind: ClassVar[str]
    about: ClassVar[str]

    @property
    def name(self) -> str:
        changed = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return self.kind + (":" + ",".join(f"{knob}={value}" for knob, value in changed) if changed else "")

    @property
    def max_tokens(self) -> int:
        # One for the stop token, one so that an answer too long by a character can be told from one that was cut.
        return self.longest_answer() + 2

    @abstractmethod
    def longest_answer(self) -> int:
        """Characters of the longest answer that may be right."""

    @abstractmethod
    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        """About ``count`` problems of any split."""

    def is_right(self, problem: Problem, answer: str) -> bool:
        """Whether a stripped response answers the problem."""
        return answer == problem.answer

    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        found: list[Problem] = []
        seen: set[str] = set()
        stale = 0
        while len(found) < count and stale < _STALE_ROUNDS:
            before = len(found)
            for problem in self.generate(max(256, 2 * (count - len(found))), rng):
                if len(found) == count:
                    break
                if (split == "train" or problem.prompt not in seen) and split_of(problem.prompt) == split:
                    found.append(problem)
                    seen.add(problem.prompt)
            stale = 0 if len(found) > before else stale + 1
        if not found and count:
            raise TaskError(
                f"{self.name!r} has so few different problems that none falls into its {split!r} split. Make it larger."
            )
        return [found[row % len(found)] for row in range(count)]

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        correct = [self.is_right(problem, text.strip()) for problem, text in zip(problems, responses, strict=True)]
        reward = [float(right) for right in correct]
        return Scores(reward, correct, {"correct": list(reward)})

    def describe(self) -> str:
        return self.about

    def _within(self, **bounds: tuple[int, int]) -> None:
        """Refuse knobs outside of their bounds, both included."""
        for knob, (low, high) in bounds.items():
            value = getattr(self, knob)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise TaskError(f"{self.kind}: {knob}={value!r} must be a whole number from {low} to {high}.")


@dataclass(frozen=True)
class Sort(EmbeddedTask):
    """Write digits in ascending order: ``s52814=`` -> ``12458``.

    Fields:
        length: digits to sort. Longer is harder, and answers cost one token more each.
    """

    kind: ClassVar[str] = "sort"
    about: ClassVar[str] = "Sort digits: s52814= -> 12458."

    length: int = 5

    def __post_init__(self) -> None:
        self._within(length=(2, 64))

    def longest_answer(self) -> int:
        return self.length

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        digits = rng.integers(0, 10, (count, self.length))
        for row, ordered in zip(digits, np.sort(digits, axis=1), strict=True):
            yield Problem(f"s{_spell(row, DIGITS)}=", _spell(ordered, DIGITS))


@dataclass(frozen=True)
class Reverse(EmbeddedTask):
    """Write letters backwards: ``rabcde=`` -> ``edcba``.

    Fields:
        length: letters to reverse. Longer is harder.
        letters: how many letters of the alphabet occur. More makes prompts rarer, so less can be learned by heart.
    """

    kind: ClassVar[str] = "reverse"
    about: ClassVar[str] = "Write letters backwards: rabcde= -> edcba."

    length: int = 5
    letters: int = 10

    def __post_init__(self) -> None:
        self._within(length=(2, 64), letters=(2, 26))

    def longest_answer(self) -> int:
        return self.length

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        for row in rng.integers(0, self.letters, (count, self.length)):
            text = _spell(row, LETTERS)
            yield Problem(f"r{text}=", text[::-1])


@dataclass(frozen=True)
class Sum(EmbeddedTask):
    """Add two numbers: ``17+85=`` -> ``102``.

    Fields:
        digits: most digits of each number. A digit more is a carry more: much harder for a tiny model.
    """

    kind: ClassVar[str] = "sum"
    about: ClassVar[str] = "Add two numbers: 17+85= -> 102."

    digits: int = 2

    def __post_init__(self) -> None:
        self._within(digits=(1, 18))

    def longest_answer(self) -> int:
        return self.digits + 1

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        for left, right in rng.integers(0, 10**self.digits, (count, 2)).tolist():
            yield Problem(f"{left}+{right}=", str(left + right))


@dataclass(frozen=True)
class Brackets(EmbeddedTask):
    """Close what is still open, in the right order: ``b([(=`` -> ``)])``. Only the shortest completion is right.

    Fields:
        length: most brackets in the prompt; at least half as many are given.
        depth: most brackets open at once, and so the longest answer. Deeper is harder than longer.
    """

    kind: ClassVar[str] = "brackets"
    about: ClassVar[str] = "Close the open brackets: b([(= -> )])."

    length: int = 8
    depth: int = 4

    def __post_init__(self) -> None:
        self._within(length=(2, 128), depth=(1, 64))

    def longest_answer(self) -> int:
        return min(self.depth, self.length)

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        lengths = rng.integers((self.length + 1) // 2, self.length + 1, count).tolist()
        kinds = rng.integers(0, 4, (count, self.length)).tolist()
        opening = (rng.random((count, self.length)) < 0.65).tolist()
        for length, kind, opens in zip(lengths, kinds, opening, strict=True):
            text, pending = "", ""
            for position in range(length):
                if not pending or (opens[position] and len(pending) < self.depth):
                    text, pending = text + "([{<"[kind[position]], ")]}>"[kind[position]] + pending
                else:
                    text, pending = text + pending[0], pending[1:]
            if pending:
                yield Problem(f"b{text}=", pending)


@dataclass(frozen=True)
class Countdown(EmbeddedTask):
    """Reach a target from given numbers with ``+``, ``-`` and ``*``: ``c2,7,3:13=`` -> ``2*3+7``.

    Any expression is right that has the target's value and uses each given number at most once.

    Fields:
        numbers: how many are given. More gives more to search through.
        largest: the largest of them.
        target: the largest target; targets are positive and never one of the numbers.
    """

    kind: ClassVar[str] = "countdown"
    about: ClassVar[str] = "Reach a target with + - *: c2,7,3:13= -> 2*3+7."

    numbers: int = 3
    largest: int = 9
    target: int = 99

    def __post_init__(self) -> None:
        self._within(numbers=(2, 8), largest=(2, 999), target=(2, 99_999))

    def longest_answer(self) -> int:
        # A pair of brackets around every operation but the outermost is always enough.
        return self.numbers * len(str(self.largest)) + (self.numbers - 1) + 2 * (self.numbers - 2)

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        given = rng.integers(1, self.largest + 1, (count, self.numbers)).tolist()
        draws = rng.random((count, self.numbers - 1, 3)).tolist()
        for numbers, choices in zip(given, draws, strict=True):
            value, expression = _random_expression(numbers, choices)
            if 0 < value <= self.target and value not in numbers:
                yield Problem(f"c{','.join(map(str, numbers))}:{value}=", expression, {"numbers": numbers, "target": value})

    def is_right(self, problem: Problem, answer: str) -> bool:
        return evaluate_expression(answer, problem.info["numbers"]) == problem.info["target"]

    def answer_class(self, problem: Problem, response: str) -> str:
        return "".join(response.split())


@dataclass(frozen=True)
class Pairs(EmbeddedTask):
    """Write any two numbers that sum to the given one: ``p27=`` -> ``13+14``. Many answers are right, to watch diversity.

    Fields:
        largest: the largest sum. Larger gives more prompts and more right answers to each.
    """

    kind: ClassVar[str] = "pairs"
    about: ClassVar[str] = "Write any two numbers with this sum: p27= -> 13+14."

    largest: int = 99

    def __post_init__(self) -> None:
        self._within(largest=(20, 10**9))

    def longest_answer(self) -> int:
        return 2 * len(str(self.largest)) + 1

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        total = rng.integers(2, self.largest + 1, count)
        # The reference is drawn too: a warm start on it leaves the policy undecided between the right answers.
        left = rng.integers(0, total + 1)
        for whole, part in zip(total.tolist(), left.tolist(), strict=True):
            yield Problem(f"p{whole}=", f"{part}+{whole - part}", {"total": whole})

    def is_right(self, problem: Problem, answer: str) -> bool:
        pair = _pair(answer)
        return pair is not None and sum(pair) == problem.info["total"]

    def answer_class(self, problem: Problem, response: str) -> str:
        pair = _pair(response.strip())
        return f"{min(pair)}+{max(pair)}" if pair else response.strip()


FAMILY: dict[str, type[EmbeddedTask]] = {task.kind: task for task in (Sort, Reverse, Sum, Brackets, Countdown, Pairs)}
"""The embedded tasks by name."""

_LONGEST_EXPRESSION = 256
_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*()]))")
_BINDS = {"+": 1, "-": 1, "*": 2}


def evaluate_expression(text: str, numbers: Sequence[int]) -> int | None:
    """The value of an expression of ``+``, ``-``, ``*``, brackets and some of ``numbers``, each used at most once.

    ``None`` for anything else, whatever the text: it is parsed here, never executed, and its length bounds the work.
    """
    tokens = _tokens(text, numbers)
    if not tokens:
        return None
    # Two stacks: values, and operators that wait for their right side.
    values: list[int] = []
    waiting: list[str] = []
    operand_next = True
    for token in [*tokens, ""]:
        if operand_next != (token == "(" or token.isdigit()):
            return None
        if token == "(":
            waiting.append(token)
        elif operand_next:
            values.append(int(token))
            operand_next = False
        else:
            while waiting and waiting[-1] != "(" and _BINDS[waiting[-1]] >= _BINDS.get(token, 0):
                _apply(waiting.pop(), values)
            if token == ")":
                if not waiting:
                    return None
                waiting.pop()
            elif token:
                waiting.append(token)
                operand_next = True
    return values[0] if not waiting else None


def _tokens(text: str, numbers: Sequence[int]) -> list[str]:
    """The tokens of an expression, or none if it has others, or numbers that were not given."""
    text = text.strip()
    if not text.isascii() or len(text) > _LONGEST_EXPRESSION:
        return []
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return []
        tokens.append(match[1] or match[2])
        position = match.end()
    # Compared as text, so that 007 is no way to write 7.
    used = Counter(token for token in tokens if token.isdigit())
    return tokens if used <= Counter(map(str, numbers)) else []


def _apply(operator: str, values: list[int]) -> None:
    right, left = values.pop(), values.pop()
    values.append(left + right if operator == "+" else left - right if operator == "-" else left * right)


def _random_expression(numbers: list[int], choices: list[list[float]]) -> tuple[int, str]:
    """Join all numbers into one expression, two at a time: its value and its text with no needless bracket."""
    parts: list[tuple[int, str, int]] = [(number, str(number), 3) for number in numbers]
    for first, second, third in choices:
        left = parts.pop(int(first * len(parts)))
        right = parts.pop(int(second * len(parts)))
        operator = "+-*"[int(third * 3)]
        binds = _BINDS[operator]
        values = [left[0], right[0]]
        _apply(operator, values)
        left_text = f"({left[1]})" if left[2] < binds else left[1]
        # a-(b+c) needs its brackets, a+(b+c) does not.
        right_text = f"({right[1]})" if right[2] < binds or (operator == "-" and right[2] == binds) else right[1]
        parts.append((values[0], left_text + operator + right_text, binds))
    return parts[0][0], parts[0][1]


def _pair(answer: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(0|[1-9][0-9]{0,11})\+(0|[1-9][0-9]{0,11})", answer)
    return (int(match[1]), int(match[2])) if match else None


def _spell(row: np.ndarray, letters: str) -> str:
    return "".join([letters[index] for index in row.tolist()])
