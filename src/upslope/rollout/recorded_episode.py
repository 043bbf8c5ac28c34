"""A recorded episode, written down so that it can be looked at again: where it began, what was done, what it earned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np

from upslope.plain_data import JsonDict
from upslope.policies.control.mlp import MLPPolicy
from upslope.policies.control.network_policy import NetworkPolicy
from upslope.policies.control.torch_policy import TorchPolicy
from upslope.rollout.normalise import ObservationNormaliser
from upslope.tasks.gym import MOST_WATCHED, Environments, GymTask

FORMAT = 1


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode from a seed under a policy's likeliest actions. The seed and the actions repeat it."""

    seed: int
    rewards: list[float]
    actions: list[object]
    """Choices, or vectors as lists, as the policy gave them."""
    ended: Literal["terminated", "truncated", "unfinished"]

    values: list[float] = field(default_factory=list)
    """What the critic expected before each action, in the environment's own rewards; none without a critic."""
    gamma: float = 1.0
    """The discount that these values and the returns to go have."""
    level: JsonDict = field(default_factory=dict)
    """What the seed drew where a task has levels, by name."""

    @property
    def returns_to_go(self) -> list[float]:
        """What came, discounted, from each step on to the end of the episode."""
        found: list[float] = []
        for reward in reversed(self.rewards):
            found.append(reward + self.gamma * (found[-1] if found else 0.0))
        return found[::-1]

    def record(self, step: int) -> JsonDict:
        """As it stands in a run's ``episodes`` folder."""
        told = {"version": FORMAT, "step": step, "return": sum(self.rewards), "length": len(self.rewards), **asdict(self)}
        return told | ({"returns_to_go": self.returns_to_go} if self.values else {})


def play(
    task: GymTask,
    policy: MLPPolicy | NetworkPolicy | TorchPolicy,
    observations: ObservationNormaliser | None,
    seed: int,
    watch: Callable[[Environments], None] | None = None,
    gamma: float = 1.0,
    reward_spread: float = 1.0,
) -> RecordedEpisode:
    """Plays an episode with the likeliest action each time.

    Args:
        observations: Shows the policy what it learned to see; ``None`` shows it what the environment gives.
        watch: Is shown the environment before the first step and after each.
        gamma: The discount of the critic, where there is one.
        reward_spread: What the critic's rewards were divided by.
    """
    place, actor = Environments(task, 1), policy.acting()
    seen, memory = place.reset(0, seed)[None], np.zeros((1, actor.memory_size), np.float32)
    rewards: list[float] = []
    actions: list[object] = []
    values: list[float] = []
    ended: Literal["terminated", "truncated", "unfinished"] = "unfinished"
    try:
        if watch is not None:
            watch(place)
        while len(rewards) < MOST_WATCHED and ended == "unfinished":
            shown = seen if observations is None else observations(seen)
            output, memory = actor.step(shown, memory)
            action = actor.choose(output, np.empty(0), True)
            judged = actor.judged(shown, output, action)
            values += [] if judged is None else [float(judged[0]) * reward_spread]
            stepped = place.step(action, [0])
            seen = stepped.observation
            if watch is not None:
                watch(place)
            actions.append(action[0].tolist())
            rewards.append(float(stepped.reward[0]))
            if stepped.terminated[0] or stepped.truncated[0]:
                ended = "terminated" if stepped.terminated[0] else "truncated"
    finally:
        place.close()
    level = place.level(0)
    return RecordedEpisode(seed, rewards, actions, ended, values, gamma, {} if level is None else level.values())
