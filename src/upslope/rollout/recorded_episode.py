"""A recorded episode, written down so that it can be looked at again: where it began, what was done, what it earned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from upslope.plain_data import JsonDict
from upslope.policies.control.mlp import MLPPolicy
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

    def record(self, step: int) -> JsonDict:
        """As it stands in a run's ``episodes`` folder."""
        return {"version": FORMAT, "step": step, "return": sum(self.rewards), "length": len(self.rewards), **asdict(self)}


def play(
    task: GymTask,
    policy: MLPPolicy,
    observations: ObservationNormaliser | None,
    seed: int,
    watch: Callable[[Environments], None] | None = None,
) -> RecordedEpisode:
    """Plays an episode with the likeliest action each time.

    Args:
        observations: Shows the policy what it learned to see; ``None`` shows it what the environment gives.
        watch: Is shown the environment before the first step and after each.
    """
    place, actor = Environments(task, 1), policy.acting()
    seen = place.reset(0, seed)[None]
    rewards: list[float] = []
    actions: list[object] = []
    ended: Literal["terminated", "truncated", "unfinished"] = "unfinished"
    try:
        if watch is not None:
            watch(place)
        while len(rewards) < MOST_WATCHED and ended == "unfinished":
            output = actor.output(seen if observations is None else observations(seen))
            action = actor.choose(output, np.empty(0), True)
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
    return RecordedEpisode(seed, rewards, actions, ended)
