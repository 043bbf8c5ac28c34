"""Small text tasks that are made on the spot, for a character-level model of a million parameters.

Prompts are as short as they can be and still tell the tasks apart, because a prompt is computed anew in every step. The task
draws whole batches with numpy; what does not belong to the wanted split is drawn again.
"""

from __future__ import annotations

import dataclasses
import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from upslope.errors import TaskError
from upslope.plain_data import Prompt
from upslope.tasks.expressions import evaluate_expression, random_expression
from upslope.tasks.letters import DIGITS, LETTERS, renamed_letters, spell
from upslope.tasks.pairs import Pair
from upslope.tasks.revisions import CORRECT, Revision, corrected
from upslope.tasks.text import Problem, Scores, Split, TextTask, split_of

ALPHABET = DIGITS + LETTERS + "+-*/=()[]{}<>,:? "
"""Every character a prompt or an answer of these tasks may use."""

_STALE_ROUNDS = 20
"""Rounds of drawing that may bring nothing new before a split counts as used up. A round has 256 draws or more."""


@dataclass(frozen=True)
class EmbeddedTask(TextTask):
    """A generator of problems with a check. Reward is 1 for a right answer and 0 otherwise.

    Hints are the beginnings of the answer, the last one all of it. Of a pair the answer is chosen, and rejected is the answer with
    one character off. The category is the kind of task, the difficulty its size: how
    many letters, digits, numbers or brackets. A harder or easier problem is one of the next size, always of the training split.

    Fields:
        hardest: the largest size that `harder` goes to, which `max_tokens` then has room for. 0 leaves `max_tokens` as the task's
            own problems need it, and `harder` ends where a reference answer no longer fits: mostly one size above.
    """

    kind: ClassVar[str]
    about: ClassVar[str]
    grows_by: ClassVar[str] = ""
    """The knob that is the difficulty of its problems."""

    hardest: int = field(default=0, kw_only=True)

    @property
    def name(self) -> str:
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        changed = [(knob, getattr(self, knob)) for knob in self.knobs() if getattr(self, knob) != defaults[knob]]
        return self.kind + (":" + ",".join(f"{knob}={value}" for knob, value in changed) if changed else "")

    @classmethod
    def knobs(cls) -> list[str]:
        """Its own, and those of all such tasks."""
        return sorted((f.name for f in dataclasses.fields(cls)), key=lambda name: name == "hardest")

    @property
    def max_tokens(self) -> int:
        # One for the stop token, one so that an answer too long by a character can be told from one that was cut.
        return max([self.longest_answer(), *([self.of_size(self.hardest).longest_answer()] if self.hardest else [])]) + 2

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

    def problem(self, prompt: str, answer: str, difficulty: int, **info: Any) -> Problem:
        """A problem of this task, of a size."""
        return Problem(prompt, answer, {**info, "category": self.kind, "difficulty": difficulty})

    def pair(self, problem: Problem) -> Pair | None:
        """The answer is chosen; rejected is the answer with one character off, always the same one of a problem."""
        answer, number = problem.answer, problem.id
        for place in (each % len(answer) for each in range(number % 997, number % 997 + len(answer))):
            same = DIGITS if answer[place] in DIGITS else LETTERS if answer[place] in LETTERS else ALPHABET
            other = same[(same.index(answer[place]) + 1 + number % (len(same) - 1)) % len(same)]
            wrong = answer[:place] + other + answer[place + 1 :]
            if wrong.strip() == wrong and not self.is_right(problem, wrong):
                return (answer,), (wrong,)
        return None

    def revision(self, problem: Problem) -> Revision | None:
        """An answer with one character off, or two, of which each makes the mistake worse; revised it is the answer."""
        pair, number = self.pair(problem), problem.id // 7
        if pair is None:
            return None
        (answer,), (wrong,) = pair
        other = number % len(answer)
        if number % 2 and wrong[other] == answer[other] and wrong[other] in LETTERS + DIGITS:
            same = DIGITS if answer[other] in DIGITS else LETTERS
            worse = wrong[:other] + same[(same.index(answer[other]) + 1) % len(same)] + wrong[other + 1 :]
            wrong = wrong if self.is_right(problem, worse) else worse
        off = sum(one != two for one, two in zip(answer, wrong, strict=True))
        return Revision(answer, corrected(wrong, answer, CORRECT - off))

    def hints(self, problem: Problem) -> tuple[str, ...]:
        return tuple(problem.answer[: end + 1] for end in range(len(problem.answer)))

    def guided(self, problem: Problem, lead: str, hint: str) -> Prompt:
        """The hint before the prompt, as in ``ed:rabcde=``: such a model reads no sentences."""
        return f"{hint}:{problem.prompt}"

    def harder(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._sized(problem, 1, rng)

    def easier(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._sized(problem, -1, rng)

    def alike(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self._sized(problem, 0, rng)

    @classmethod
    def all_give(cls) -> frozenset[str]:
        """What every task of the class gives, whatever its knobs."""
        return frozenset(
            {"answers", "solutions", "hints", "pairs", "labels", "revisions"}
            | ({"categories", "levels", "variants"} if cls.grows_by else set())
        )

    def gives(self) -> frozenset[str]:
        return self.all_give()

    def of_size(self, size: int) -> EmbeddedTask:
        """The task whose largest problems have this size.

        Raises:
            TaskError: if there is none.
        """
        return replace(self, hardest=0, **{self.grows_by: size})

    def next_size(self, size: int, larger: int) -> int:
        """The size that is larger, or smaller, by so many steps."""
        return size + larger

    def _sized(self, problem: Problem, larger: int, rng: np.random.Generator) -> Problem | None:
        """A fresh training problem that is larger than another by so much, if there is one that may be answered."""
        if math.isnan(problem.difficulty):
            return None
        size = self.next_size(int(problem.difficulty), larger)
        if self.hardest and size > max(self.hardest, problem.difficulty):
            return None
        try:
            sized = self.of_size(size)
        except TaskError:
            return None
        for each in sized.generate(256, rng):
            new = each.difficulty == size and each.prompt != problem.prompt
            if new and split_of(each.prompt) == "train" and len(each.answer) < self.max_tokens:
                return each
        return None

    def _within(self, **bounds: tuple[int, int]) -> None:
        """Refuse knobs outside of their bounds, both included."""
        if self.hardest:
            try:
                self.of_size(self.hardest)
            except TaskError as problem:
                raise TaskError(f"{self.kind}: hardest={self.hardest!r} is no size that it has. {problem}") from None
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
    grows_by: ClassVar[str] = "length"

    length: int = 5

    def __post_init__(self) -> None:
        self._within(length=(2, 64))

    def longest_answer(self) -> int:
        return self.length

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        digits = rng.integers(0, 10, (count, self.length))
        for row, ordered in zip(digits, np.sort(digits, axis=1), strict=True):
            yield self.problem(f"s{spell(row, DIGITS)}=", spell(ordered, DIGITS), self.length)


@dataclass(frozen=True)
class Reverse(EmbeddedTask):
    """Write letters backwards: ``rabcde=`` -> ``edcba``.

    Fields:
        length: letters to reverse. Longer is harder.
        letters: how many letters of the alphabet occur. More makes prompts rarer, so less can be learned by heart.
    """

    kind: ClassVar[str] = "reverse"
    about: ClassVar[str] = "Write letters backwards: rabcde= -> edcba."
    grows_by: ClassVar[str] = "length"

    length: int = 5
    letters: int = 10

    def __post_init__(self) -> None:
        self._within(length=(2, 64), letters=(2, 26))

    def longest_answer(self) -> int:
        return self.length

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        for row in rng.integers(0, self.letters, (count, self.length)):
            text = spell(row, LETTERS)
            yield self.problem(f"r{text}=", text[::-1], self.length)

    def alike(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        """The same letters under other names, as far as the alphabet goes."""
        return renamed_letters(problem, self.letters, rng)


@dataclass(frozen=True)
class Sum(EmbeddedTask):
    """Add two numbers: ``17+85=`` -> ``102``.

    Fields:
        digits: most digits of each number. A digit more is a carry more: much harder for a tiny model.
    """

    kind: ClassVar[str] = "sum"
    about: ClassVar[str] = "Add two numbers: 17+85= -> 102."
    grows_by: ClassVar[str] = "digits"

    digits: int = 2

    def __post_init__(self) -> None:
        self._within(digits=(1, 18))

    def longest_answer(self) -> int:
        return self.digits + 1

    def generate(self, count: int, rng: np.random.Generator) -> Iterator[Problem]:
        for left, right in rng.integers(0, 10**self.digits, (count, 2)).tolist():
            yield self.problem(f"{left}+{right}=", str(left + right), len(str(max(left, right))))


@dataclass(frozen=True)
class Brackets(EmbeddedTask):
    """Close what is still open, in the right order: ``b([(=`` -> ``)])``. Only the shortest completion is right.

    Fields:
        length: most brackets in the prompt; at least half as many are given.
        depth: most brackets open at once, and so the longest answer. Deeper is harder than longer.
    """

    kind: ClassVar[str] = "brackets"
    about: ClassVar[str] = "Close the open brackets: b([(= -> )])."
    grows_by: ClassVar[str] = "depth"

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
                yield self.problem(f"b{text}=", pending, len(pending))


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
    grows_by: ClassVar[str] = "numbers"

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
            value, expression = random_expression(numbers, choices)
            if 0 < value <= self.target and value not in numbers:
                prompt = f"c{','.join(map(str, numbers))}:{value}="
                yield self.problem(prompt, expression, self.numbers, numbers=numbers, target=value)

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
    grows_by: ClassVar[str] = "largest"

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
            yield self.problem(f"p{whole}=", f"{part}+{whole - part}", len(str(whole)), total=whole)

    def of_size(self, size: int) -> Pairs:
        """Its size is the number of digits."""
        return replace(self, hardest=0, largest=10**size - 1)

    def is_right(self, problem: Problem, answer: str) -> bool:
        pair = _pair(answer)
        return pair is not None and sum(pair) == problem.info["total"]

    def answer_class(self, problem: Problem, response: str) -> str:
        pair = _pair(response.strip())
        return f"{min(pair)}+{max(pair)}" if pair else response.strip()


FAMILY: dict[str, type[EmbeddedTask]] = {task.kind: task for task in (Sort, Reverse, Sum, Brackets, Countdown, Pairs)}
"""The embedded tasks by name."""


def _pair(answer: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(0|[1-9][0-9]{0,11})\+(0|[1-9][0-9]{0,11})", answer)
    return (int(match[1]), int(match[2])) if match else None
