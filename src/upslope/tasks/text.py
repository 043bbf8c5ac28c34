"""What a text task is: problems with a prompt, and a score for what was written in answer to them.

This module imports no torch: the command line lists tasks without waiting for it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from upslope.plain_data import Message, Prompt
from upslope.runtime.hashing import stable_hash
from upslope.tasks.choices import Choices
from upslope.tasks.giving import LOOKED_AT, READERS, given_by
from upslope.tasks.messages import with_text_behind
from upslope.tasks.pairs import Pair
from upslope.tasks.paying import FULL_MARKS as FULL_MARKS
from upslope.tasks.paying import SECONDS as SECONDS
from upslope.tasks.paying import NoReward as NoReward
from upslope.tasks.paying import Reward as Reward
from upslope.tasks.paying import RewardRows as RewardRows
from upslope.tasks.paying import UndecidedReward as UndecidedReward
from upslope.tasks.paying import call_reward as call_reward
from upslope.tasks.paying import correct_ones as correct_ones
from upslope.tasks.paying import reward_name as reward_name
from upslope.tasks.paying import short_name as short_name
from upslope.tasks.paying import takes as takes
from upslope.tasks.revisions import Revision

Split = Literal["train", "tune", "test"]
"""``train`` is learned from, ``tune`` decides during training (when to stop a warm start), ``test`` is never seen by either."""

SPLITS: tuple[Split, ...] = ("train", "tune", "test")


@dataclass(frozen=True)
class Problem:
    """One thing to answer."""

    prompt: str
    answer: str = ""
    """A right answer, not always the only one. Empty where none is known."""
    info: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What else the task needs to score it, and what it says of itself: ``solution``, ``hints``, ``documents``, ``category``,
    ``difficulty``, ``chosen`` and ``rejected``, ``completion`` and ``label``, ``revisions`` and ``evidence``."""
    messages: tuple[Message, ...] = field(default=(), hash=False)
    """The prompt as the turns of a conversation, where it was given so; `prompt` is then the same to read."""
    unread: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Keys of `info` that are only for the reward here, though they are called like one of the above."""

    @property
    def model_input(self) -> Prompt:
        """What the model is given: the messages, or the prompt as text."""
        return self.messages or self.prompt

    @property
    def id(self) -> int:
        """63 bits, the same for this prompt in every process."""
        return stable_hash(self.prompt)

    @property
    def solution(self) -> str:
        """A worked solution to imitate; where none is given the answer, and without one an answer that is preferred."""
        if said := self._said("solution") or self.answer:
            return said
        if (pair := self.pair) is not None:
            return pair[0][0]
        return self.wanted[0] if self.wanted is not None and self.wanted[1] else ""

    @property
    def hints(self) -> tuple[str, ...]:
        """Texts that help, the weakest first."""
        return self._said("hints") or ()

    @property
    def documents(self) -> tuple[str, ...]:
        """Texts that hold what must be known to answer."""
        return self._said("documents") or ()

    @property
    def category(self) -> str:
        """What kind of problem it is; empty where nobody says."""
        return self._said("category") or ""

    @property
    def difficulty(self) -> float:
        """Larger is harder, on the task's own scale; NaN where nobody knows."""
        known = self._said("difficulty")
        return math.nan if known is None else known

    @cached_property
    def pair(self) -> Pair | None:
        """Its chosen answers and its rejected ones, where it has both; of an answer that was revised, the true one and that."""
        chosen, rejected = self._said("chosen"), self._said("rejected")
        if chosen and rejected:
            return chosen, rejected
        revision = self.revision
        return ((revision.truth,), (revision.generated,)) if revision is not None and revision.truth else None

    @property
    def revision(self) -> Revision | None:
        """An answer that was revised, piece by piece, where it has such."""
        pieces = self._said("revisions")
        return Revision(self._said("solution") or self.answer, pieces, self.info.get("evidence") or "") if pieces else None

    @property
    def wanted(self) -> tuple[str, bool] | None:
        """A single answer, and whether it is wanted, where it has such."""
        completion, label = self._said("completion"), self._said("label")
        return (completion[0], label) if completion and label is not None else None

    def _said(self, key: str) -> Any:
        """What `info` says under a key, if that is of the right kind."""
        value = self.info.get(key)
        return None if value is None or key in self.unread else READERS[key][0](value)


@dataclass(frozen=True)
class Scores:
    """What some responses are worth; all lists are as long as the responses."""

    reward: list[float]
    correct: list[bool]
    components: dict[str, list[float]] = field(default_factory=dict)
    """Named parts of the reward, for the metrics; NaN where a part does not apply."""
    items: list[list[float]] = field(default_factory=list)
    """What each item of an answer is worth, where the task asks for a list: as many numbers as it asks for items."""
    seconds: list[float] = field(default_factory=list)
    """How long whatever an answer set going took (a program, a tool), where that is known; a reward tells it under this name."""

    def __post_init__(self) -> None:
        further: dict[str, Sequence] = {"items": self.items, "seconds": self.seconds}
        columns: dict[str, Sequence] = {"correct": self.correct, **self.components, **{k: v for k, v in further.items() if v}}
        for name, column in columns.items():
            if len(column) != len(self.reward):
                raise ValueError(f"{name!r} has {len(column)} values for {len(self.reward)} rewards")


class TextTask(ABC):
    """Problems in text and a way to score answers."""

    domain: ClassVar[str] = "text"
    separator: ClassVar[str] = "\n"
    """What ends an item of a list or a step of an answer; it belongs to the item it ends. Empty: an answer is one item."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As given to `load_task`, knobs included."""

    @property
    @abstractmethod
    def max_tokens(self) -> int:
        """Tokens an answer may have, its stop token included. Enough for a character tokenizer."""

    @abstractmethod
    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        """``count`` problems of ``split``, no two alike in ``tune`` and ``test`` while there are enough."""

    @abstractmethod
    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        """What each response is worth as an answer to the problem beside it."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people."""

    def answer_class(self, problem: Problem, response: str) -> str:
        """A text that two responses share when they give the same answer: by default, when they read the same."""
        return response.strip()

    # What a task may say beyond that. Methods that need it are refused on tasks that do not.

    def hints(self, problem: Problem) -> tuple[str, ...]:
        """Texts that help with a problem, the weakest first; by default those it brings."""
        return problem.hints

    def guided(self, problem: Problem, lead: str, hint: str) -> Prompt:
        """The prompt of a problem with a hint in it, ``lead`` before the hint."""
        return with_text_behind(problem.model_input, f"\n{lead}\n{hint}")

    def pair(self, problem: Problem) -> Pair | None:
        """Chosen and rejected answers to a problem; by default those it brings."""
        return problem.pair

    def revision(self, problem: Problem) -> Revision | None:
        """An answer to a problem that was revised; by default the one it brings."""
        return problem.revision

    def harder(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        """A training problem like this one, a little harder; none where there is no such thing."""
        return None

    def easier(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        """A training problem like this one, a little easier; none where there is no such thing."""
        return None

    def alike(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        """Another training problem, as hard as this one; none where there is no such thing."""
        return None

    def compare(self, problem: Problem, responses: Sequence[str]) -> Sequence[Sequence[float]]:
        """The chance that each response is preferred to each other, ``P[i][j]`` that ``i`` is to ``j``.

        Only one order need be right: what is used is the mean of ``P[i][j]`` and ``1 - P[j][i]``. A task that knows no better has
        no preferences of its own, and its reward decides.
        """
        raise NotImplementedError

    @property
    def compares(self) -> bool:
        """Whether it can `compare`."""
        return type(self).compare is not TextTask.compare

    @property
    def tells_seconds(self) -> bool:
        """Whether its scores always say how long each answer took, so that nobody need call it for one answer at a time."""
        return False

    @property
    def choices(self) -> Choices | None:
        """All answers there are, where they are so few that an evaluation asks for the chance of each; else nothing."""
        return None

    def gives(self) -> frozenset[str]:
        """What its problems have, of the words in `upslope.tasks.giving`; by default, what a few training problems show."""
        variants = any(getattr(type(self), name) is not getattr(TextTask, name) for name in ("harder", "easier", "alike"))
        shown = given_by(self, self.sample(LOOKED_AT, "train", np.random.default_rng(0)))
        further = {"variants": variants, "comparisons": self.compares}
        return shown | {word for word, given in further.items() if given}

    def first_without(self, word: str) -> str:
        """Where the first problem stands that lacks what a word names, as in ``my.jsonl, line 3``; empty if no place is known."""
        return ""


@dataclass(frozen=True)
class WrappedTask(TextTask):
    """A task with something about it changed; all else is the task's own."""

    task: TextTask

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def max_tokens(self) -> int:
        return self.task.max_tokens

    @property
    def separator(self) -> str:  # type: ignore[override]
        return self.task.separator

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know about it."""
        return tuple(getattr(self.task, "remarks", ()))

    def sample(self, count: int, split: Split, rng: np.random.Generator) -> list[Problem]:
        return self.task.sample(count, split, rng)

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        return self.task.score(problems, responses)

    def describe(self) -> str:
        return self.task.describe()

    def answer_class(self, problem: Problem, response: str) -> str:
        return self.task.answer_class(problem, response)

    def hints(self, problem: Problem) -> tuple[str, ...]:
        return self.task.hints(problem)

    def guided(self, problem: Problem, lead: str, hint: str) -> Prompt:
        return self.task.guided(problem, lead, hint)

    def pair(self, problem: Problem) -> Pair | None:
        return self.task.pair(problem)

    def revision(self, problem: Problem) -> Revision | None:
        return self.task.revision(problem)

    def harder(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self.task.harder(problem, rng)

    def easier(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self.task.easier(problem, rng)

    def alike(self, problem: Problem, rng: np.random.Generator) -> Problem | None:
        return self.task.alike(problem, rng)

    def compare(self, problem: Problem, responses: Sequence[str]) -> Sequence[Sequence[float]]:
        return self.task.compare(problem, responses)

    @property
    def compares(self) -> bool:
        return self.task.compares

    @property
    def tells_seconds(self) -> bool:
        return self.task.tells_seconds

    @property
    def choices(self) -> Choices | None:
        return self.task.choices

    def gives(self) -> frozenset[str]:
        return self.task.gives()

    def first_without(self, word: str) -> str:
        return self.task.first_without(word)


@dataclass(frozen=True)
class WithReward(WrappedTask):
    """The problems of a task under another reward, which also decides between answers. What is *correct* stays for the task itself
    to say."""

    reward: Reward

    @property
    def compares(self) -> bool:
        return False

    def gives(self) -> frozenset[str]:
        return self.task.gives() - {"comparisons"}

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        own = self.task.score(problems, responses)
        reward, components = call_reward(self.reward, problems, responses, self.name)
        seconds = components.pop(SECONDS, [])
        return Scores(reward, own.correct, {**own.components, **components}, seconds=seconds)

    @property
    def tells_seconds(self) -> bool:
        return bool(getattr(self.reward, "tells_seconds", False))

    def describe(self) -> str:
        return f"{self.task.describe()} Rewarded by {reward_name(self.reward)}."


def split_of(prompt: str) -> Split:
    """Where a prompt belongs, by its hash: a fifth to ``test``, a tenth to ``tune``, the rest to ``train``.

    No draw enters, so the splits cannot overlap whatever the seeds of a run are.
    """
    share = stable_hash(prompt) % 10
    return "test" if share < 2 else "tune" if share < 3 else "train"
