"""Rewards of text: how they are called, what they may return, and what stands where there is none."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from upslope.errors import TaskError

if TYPE_CHECKING:
    from upslope.tasks.text import Problem

Reward = Callable[..., Any]
"""``reward(prompts, responses, answers)``, three lists of text, gives a number for each response or a mapping of named lists of
numbers with ``"reward"`` among them. One that has a parameter ``infos`` is also given each problem's further keys."""

SECONDS = "seconds"
"""Under this name a reward tells how long each answer took (its program, its tool): a time, and no part of the reward."""

FULL_MARKS = 1.0 - 1e-9
"""A reward from here on counts as right where a task has no other way to tell."""


@dataclass(frozen=True)
class RewardRows:
    """What a reward is called with; all lists are as long as the responses."""

    prompts: list[str]
    responses: list[str]
    answers: list[str]
    infos: Sequence[Mapping[str, Any]]
    """Every further column of each problem."""
    messages: list[Any]
    """The prompt of each problem as a list of messages, where it is one; else nothing."""
    task_name: str = ""

    @classmethod
    def of(cls, problems: Sequence[Problem], responses: Sequence[str], task_name: str = "") -> RewardRows:
        prompts, answers = [problem.prompt for problem in problems], [problem.answer for problem in problems]
        infos = [dict(problem.info) for problem in problems]
        return cls(
            prompts, list(responses), answers, infos, [getattr(each, "messages", None) or None for each in problems], task_name
        )

    def only(self, row: int) -> RewardRows:
        prompt, response, answer = self.prompts[row], self.responses[row], self.answers[row]
        return RewardRows([prompt], [response], [answer], [self.infos[row]], [self.messages[row]], self.task_name)

    def pay(self, reward: Reward) -> tuple[list[float], dict[str, list[float]]]:
        """What a reward gives each response, NaN where it does not apply, and its named components."""
        further = {name: getattr(self, name) for name in ("infos", "messages", "task_name") if takes(reward, name)}
        returned = reward(self.prompts, self.responses, self.answers, **further)
        if isinstance(returned, Mapping):
            components = {name: [float(value) for value in column] for name, column in returned.items()}
            rewards = components.pop("reward", None)
            if rewards is None:
                raise TaskError(f"{reward_name(reward)} returned {sorted(returned)}, but no 'reward' among them. Add that key.")
        else:
            rewards, components = [float(value) for value in returned], {}
        if len(rewards) != len(self.responses):
            raise TaskError(f"{reward_name(reward)} returned {len(rewards)} rewards for {len(self.responses)} responses.")
        return rewards, components


def call_reward(
    reward: Reward, problems: Sequence[Problem], responses: Sequence[str], task_name: str = ""
) -> tuple[list[float], dict[str, list[float]]]:
    """The rewards of some responses, and their named components. What a reward does not apply to earns nothing."""
    rewards, components = RewardRows.of(problems, responses, task_name).pay(reward)
    if any(math.isnan(value) for value in rewards):
        components = {**components, short_name(reward): rewards}
        rewards = [0.0 if math.isnan(value) else value for value in rewards]
    return rewards, components


def correct_ones(rewards: Sequence[float], components: Mapping[str, Sequence[float]]) -> list[bool]:
    """Which responses are right: the component ``correct`` says so (a half or more); without one, those with full marks are."""
    if "correct" in components:
        return [value >= 0.5 for value in components["correct"]]
    return [value >= FULL_MARKS for value in rewards]


def takes(reward: Reward, name: str) -> bool:
    """Whether a reward has a parameter of this name, such as ``infos``: a fourth one may be the user's own knob."""
    try:
        return name in inspect.signature(reward).parameters
    except (TypeError, ValueError):
        return False


def short_name(reward: Reward) -> str:
    """What the metric of a reward is called: its name without the file and without options."""
    return reward_name(getattr(reward, "function", reward)).partition(":")[0]


@dataclass(frozen=True)
class NoReward:
    """Stands where preferences or a judge were given and nothing that could score an answer: it pays nothing."""

    name: ClassVar[str] = "nothing: it has preferences alone"

    def __call__(self, prompts: list[str], responses: list[str], answers: list[str]) -> list[float]:
        return [0.0] * len(responses)


@dataclass(frozen=True)
class UndecidedReward:
    """Stands where data with answers were given no reward: the run looks at some sampled answers and chooses one."""

    name: ClassVar[str] = "a reward that is chosen when the run begins"
    needs_answer: ClassVar[bool] = True

    def __call__(self, prompts: list[str], responses: list[str], answers: list[str]) -> list[float]:
        raise TaskError("no reward was chosen yet. Give one, such as 'exact', 'number' or a function of yours as my.py:score.")


def reward_name(reward: Reward) -> str:
    """How to speak of a reward in messages and records."""
    return str(getattr(reward, "name", None) or getattr(reward, "__name__", None) or type(reward).__name__)
