"""What a text task is: problems with a prompt, and a score for what was written in answer to them.

This module imports no torch: the command line lists tasks without waiting for it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from upslope.errors import TaskError
from upslope.plain_data import Message, Prompt

Split = Literal["train", "tune", "test"]
"""``train`` is learned from, ``tune`` decides during training (when to stop a warm start), ``test`` is never seen by either."""

SPLITS: tuple[Split, ...] = ("train", "tune", "test")

Reward = Callable[..., Any]
"""``reward(prompts, responses, answers)``, three lists of text, gives a number for each response or a mapping of named lists of
numbers with ``"reward"`` among them. One that has a parameter ``infos`` is also given each problem's further keys."""

FULL_MARKS = 1.0 - 1e-9
"""A reward from here on counts as right where a task has no other way to tell."""


@dataclass(frozen=True)
class Problem:
    """One thing to answer."""

    prompt: str
    answer: str = ""
    """A right answer, not always the only one. Empty where none is known."""
    info: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What else the task needs to score it."""
    messages: tuple[Message, ...] = field(default=(), hash=False)
    """The prompt as the turns of a conversation, where it was given so; `prompt` is then the same to read."""

    @property
    def model_input(self) -> Prompt:
        """What the model is given: the messages, or the prompt as text."""
        return self.messages or self.prompt

    @property
    def id(self) -> int:
        """63 bits, the same for this prompt in every process."""
        return _stable_hash(self.prompt)


@dataclass(frozen=True)
class Scores:
    """What some responses are worth; all lists are as long as the responses."""

    reward: list[float]
    correct: list[bool]
    components: dict[str, list[float]] = field(default_factory=dict)
    """Named parts of the reward, for the metrics."""
    items: list[list[float]] = field(default_factory=list)
    """What each item of an answer is worth, where the task asks for a list: as many numbers as it asks for items."""

    def __post_init__(self) -> None:
        columns: dict[str, Sequence] = {"correct": self.correct, **self.components, **({"items": self.items} if self.items else {})}
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


@dataclass(frozen=True)
class WithReward(WrappedTask):
    """The problems of a task under another reward. What is *correct* stays for the task itself to say."""

    reward: Reward

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        own = self.task.score(problems, responses)
        reward, components = call_reward(self.reward, problems, responses)
        return Scores(reward, own.correct, {**own.components, **components})

    def describe(self) -> str:
        return f"{self.task.describe()} Rewarded by {reward_name(self.reward)}."


def split_of(prompt: str) -> Split:
    """Where a prompt belongs, by its hash: a fifth to ``test``, a tenth to ``tune``, the rest to ``train``.

    No draw enters, so the splits cannot overlap whatever the seeds of a run are.
    """
    share = _stable_hash(prompt) % 10
    return "test" if share < 2 else "tune" if share < 3 else "train"


def call_reward(
    reward: Reward, problems: Sequence[Problem], responses: Sequence[str]
) -> tuple[list[float], dict[str, list[float]]]:
    """The rewards of some responses, and their named components."""
    further = {"infos": [dict(problem.info) for problem in problems]} if takes_infos(reward) else {}
    prompts, answers = [problem.prompt for problem in problems], [problem.answer for problem in problems]
    returned = reward(prompts, list(responses), answers, **further)
    if isinstance(returned, Mapping):
        components = {name: [float(value) for value in column] for name, column in returned.items()}
        rewards = components.pop("reward", None)
        if rewards is None:
            raise TaskError(f"{reward_name(reward)} returned {sorted(returned)}, but no 'reward' among them. Add that key.")
    else:
        rewards, components = [float(value) for value in returned], {}
    if len(rewards) != len(responses):
        raise TaskError(f"{reward_name(reward)} returned {len(rewards)} rewards for {len(responses)} responses.")
    return rewards, components


def takes_infos(reward: Reward) -> bool:
    """Whether a reward has a parameter ``infos``; it is recognised by name, since a fourth one may be the user's own knob."""
    try:
        return "infos" in inspect.signature(reward).parameters
    except (TypeError, ValueError):
        return False


def reward_name(reward: Reward) -> str:
    """How to speak of a reward in messages and records."""
    return str(getattr(reward, "name", None) or getattr(reward, "__name__", None) or type(reward).__name__)


def _stable_hash(text: str) -> int:
    from upslope.runtime.seeding import stable_hash  # late: it comes with torch

    return stable_hash(text)
