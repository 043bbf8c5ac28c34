"""Which level comes next, where the episodes of a run follow one another in several environments."""

from __future__ import annotations

from upslope.runtime.seeding import mix
from upslope.tasks.levels import Level, Levels


class LevelDraws:
    """The levels of successive episodes: each a function of the seed, of the step at which episodes last began afresh, of the
    environment and of the number of its episode since. A resumed run and one that never stopped draw the same.

    Attributes:
        playing: the level each environment is in; none where the task has no levels.
    """

    def __init__(self, levels: Levels, seed: int, envs: int) -> None:
        self.levels, self.seed = levels, seed
        self.playing: list[Level | None] = [None] * envs
        self._step, self._episode = 0, [0] * envs

    def restart(self, step: int) -> None:
        """Episodes begin afresh in all environments."""
        self._step, self._episode = step, [0] * len(self._episode)

    def next(self, env: int) -> Level | None:
        """The level of an environment's next episode, which begins now."""
        if self.levels:
            self.playing[env] = self.levels.draw(mix(self.seed, "level", self._step, env, self._episode[env]))
            self._episode[env] += 1
        return self.playing[env]

    def task_id(self, env: int, task: str) -> int:
        """A hash of what an environment plays: of its level, or of the task where there are none."""
        return (self.playing[env] or Level()).task_id(task)
