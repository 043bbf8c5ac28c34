"""Training without resets: two tasks that undo one another, each of which begins where the other ended.

A robot that must be put back by hand learns by the hour what it could learn by the minute. `ResetFree` gives it a second task, to
bring things back, and changes between the two. The end of a phase is the end of an episode to whoever learns; the reset that
follows only changes the task. It is imported when the first such environment is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs, seeding

from upslope.errors import TaskError
from upslope.fields import shown

FORWARD, BACKWARD = 0, 1
"""What an observation says of the task, in its last number."""


class ResetFree(gymnasium.Wrapper, RecordConstructorArgs):
    """An environment that is reset once, with a second task that brings back what the first one did.

    Forward it pays and terminates as it always did; backward it pays 1 where it is back, which ends the phase, and 0 before. A time
    limit of the environment's own no longer counts. With `Environments.states` a run goes on where it was interrupted, if the
    environment has ``get_state()``, a list of numbers, and ``set_state(numbers)``.

    Args:
        backward: Says of an observation whether it is back.
        steps: The most a phase may have; longer ones are cut.
        forward_only: The first task alone, with a reset for each episode.
    """

    def __init__(self, env: Any, backward: Callable[[Any], bool], steps: int, forward_only: bool = False) -> None:
        _check(env, backward, steps)
        RecordConstructorArgs.__init__(self, backward=backward, steps=steps, forward_only=forward_only)
        gymnasium.Wrapper.__init__(self, env)
        self.backward, self.phase_steps, self.forward_only = backward, int(steps), forward_only
        space = env.observation_space
        low, high = np.append(space.low, FORWARD), np.append(space.high, BACKWARD)
        self.observation_space = gymnasium.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)
        self._seen: np.ndarray | None = None
        """The last observation; none before the one reset."""
        self._task, self._steps, self._over = FORWARD, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """The first time a reset. Later the next task from here, or, in the middle of a phase, the same one; with a seed the
        environment's own random numbers begin anew, so that they are the same in a run that was interrupted here."""
        if self._seen is None or self.forward_only:
            self._seen, info = self.env.reset(seed=seed, options=options)
            self._task, self._steps, self._over = FORWARD, 0, False
            return self._shown(), info
        if seed is not None:
            self.unwrapped.np_random, _ = seeding.np_random(seed)
        if self._over:
            self._task, self._steps, self._over = BACKWARD - self._task, 0, False
        return self._shown(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._seen, reward, done, _, info = self.env.step(action)
        self._steps += 1
        if self._task == BACKWARD:
            done = bool(self.backward(self._seen))
            reward = float(done)
        cut = not done and self._steps >= self.phase_steps
        self._over = bool(done) or cut
        return self._shown(), float(reward), bool(done), cut, info

    def _shown(self) -> np.ndarray:
        assert self._seen is not None
        return np.append(self._seen, self._task).astype(self.observation_space.dtype)

    # -- carrying over a stop ------------------------------------------------------------------------------------------

    @property
    def can_go_on(self) -> bool:
        """Whether where it is can be kept."""
        return self.forward_only or (self._finds("get_state") and self._finds("set_state"))

    def _finds(self, name: str) -> bool:
        return self.env.has_wrapper_attr(name) and callable(self.env.get_wrapper_attr(name))

    def kept_state(self) -> dict[str, list[float]] | None:
        """Where it is, in numbers; nothing before the reset, or where the environment does not say."""
        if self._seen is None or self.forward_only or not self.can_go_on:
            return None
        numbers = np.asarray(self.env.get_wrapper_attr("get_state")(), np.float64)
        phase = [float(self._task), float(self._steps), float(self._over)]
        return {"phase": phase, "seen": self._seen.astype(np.float64).tolist(), "state": numbers.reshape(-1).tolist()}

    def go_on_from(self, kept: dict[str, list[float]]) -> None:
        """Takes what `kept_state` gave; a reset came before."""
        task, steps, over = kept["phase"]
        self._task, self._steps, self._over = int(task), int(steps), bool(over)
        self._seen = np.asarray(kept["seen"]).astype(self.env.observation_space.dtype)
        self.env.get_wrapper_attr("set_state")(np.asarray(kept["state"], np.float64))


def _check(env: Any, backward: object, steps: object) -> None:
    if not isinstance(env, gymnasium.Env):
        raise TaskError(f"reset_free was given {shown(env)}, which is no gymnasium.Env. Make the environment first.")
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise TaskError(
            f"reset_free puts the number of the task behind a vector of numbers, and the observations here are {space}. Put "
            "gymnasium's FlattenObservation around the environment first."
        )
    if not callable(backward):
        raise TaskError(f"backward is {shown(backward)}; it must be a function of an observation that says whether it is back.")
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise TaskError(f"steps is {shown(steps)}; it must be a whole number of steps of a phase, at least 1.")
