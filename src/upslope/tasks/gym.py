"""Gymnasium environments as tasks: spaces made flat, errors made plain, terminations and truncations kept apart.

Neither torch nor gymnasium is imported until a task is made, so that the command line's help stays fast. Left out: images,
dictionaries and multi-part actions (they are refused by name), and gymnasium's own vector environments. A plain loop over single
environments is about a quarter faster than the synchronous one, and it shows the last observation of an episode and the first of
the next side by side, so that nobody can bootstrap from the wrong one. Simulators that take long are spread over processes
(`upslope.tasks.env_workers`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from upslope.errors import MissingExtra, TaskError, did_you_mean, install_extra

if TYPE_CHECKING:
    from upslope.tasks.env_workers import SpreadEnvironments

MOST_WATCHED = 10_000
"""Steps after which watching an episode ends where the environment has no limit of its own."""


class Stepped(NamedTuple):
    """What a step of several environments gave; row ``b`` belongs to the b-th environment that was stepped."""

    observation: np.ndarray
    """``[B, D]``, before any reset: where an episode ended, its final observation."""
    reward: np.ndarray
    """``[B]`` float64, raw."""
    terminated: np.ndarray
    truncated: np.ndarray
    """Never together with ``terminated``: an episode that ended of itself was not cut."""


class GymTask:
    """A gymnasium environment by id. It is looked at once, when the task is made: what cannot be used is refused there.

    Args:
        env_id: As gymnasium knows it, ``"CartPole-v1"``; ``"package.module:MyEnv-v0"`` imports the module first.
        make_options: Handed to ``gymnasium.make``: an environment's own settings, or ``max_episode_steps``.

    Attributes:
        name: ``"gym:CartPole-v1"``.
        observation_size: Numbers in an observation: a Box flattened, a Discrete one-hot.
        action_space: Gymnasium's.
        continuous: Whether actions are vectors (Box) rather than choices (Discrete).
        action_size: Choices, or dimensions.
        max_episode_steps: The time limit, or ``None`` where episodes can go on for ever.
        solved: The mean return at which the environment counts as solved, if it names one.
    """

    domain = "control"

    def __init__(self, env_id: str, **make_options: Any) -> None:
        self.env_id, self.options = env_id, make_options
        env = self.make_one()
        try:
            self.env_id = env_id if ":" in env_id else env.spec.id  # an id without a version stands for the newest one
            self.name = f"gym:{self.env_id}"
            self.observation_space, self.action_space = env.observation_space, env.action_space
            self.max_episode_steps: int | None = env.spec.max_episode_steps
            self.solved: float | None = env.spec.reward_threshold
        finally:
            env.close()
        self.observation_size = _observation_size(self.name, self.observation_space)
        self.continuous, self.action_size = _action_size(self.name, self.action_space)

    def make_one(self, **options: Any) -> Any:
        """One plain ``gymnasium.Env``; ``render_mode="human"`` to watch it."""
        return _make(self.env_id, {**self.options, **options})

    def make(self, envs: int, workers: int = 1) -> Environments | SpreadEnvironments:
        """That many environments, stepped together: in this process, or spread over ``workers`` of which it is one."""
        if min(workers, envs) <= 1:
            return Environments(self, envs)
        from upslope.tasks.env_workers import SpreadEnvironments

        return SpreadEnvironments(self, envs, min(workers, envs))

    def registered(self) -> Any:
        """What gymnasium knows under its id, for a process that does not know it yet."""
        return _gymnasium().registry.get(self.env_id)

    @classmethod
    def again(cls, env_id: str, options: dict[str, Any], registered: Any) -> GymTask:
        """The same task in another process."""
        if registered is not None:
            _gymnasium().registry.setdefault(env_id, registered)
        return cls(env_id, **options)

    def __repr__(self) -> str:
        return f"GymTask({', '.join([repr(self.env_id), *(f'{key}={value!r}' for key, value in self.options.items())])})"


class Environments:
    """Several environments of one task: flat float32 observations out, actions in as a policy gives them.

    Box actions are clipped to the space here and nowhere else: what a policy learns from is the action it drew, whose
    probability it knows; what the environment sees is the nearest one it allows.
    """

    def __init__(self, task: GymTask, count: int) -> None:
        if count < 1:
            raise TaskError(f"{task.name}: asked for {count} environments; at least 1 is needed.")
        self.task = task
        self._envs = [task.make_one() for _ in range(count)]
        self._one_hot = not task.observation_space.shape and hasattr(task.observation_space, "n")
        self._first = int(getattr(task.observation_space, "start", 0))

    def __len__(self) -> int:
        return len(self._envs)

    def reset(self, which: int, seed: int | None = None) -> np.ndarray:
        """The first observation ``[D]`` of a new episode; without a seed the environment goes on with its own numbers."""
        observation, _ = self._envs[which].reset(seed=seed)
        flat = np.zeros(self.task.observation_size, np.float32)
        self._write(flat, observation)
        return flat

    def step(self, actions: np.ndarray, which: Sequence[int]) -> Stepped:
        """Step the environments ``which`` with one action each: ids ``[B]`` or vectors ``[B, D]``. Nothing is reset."""
        count = len(which)
        seen = np.zeros((count, self.task.observation_size), np.float32)
        reward, ends, cut = [0.0] * count, [False] * count, [False] * count
        for row, (action, env) in enumerate(zip(self._as_taken(actions), which, strict=True)):
            observation, reward[row], ends[row], cut[row], _ = self._envs[env].step(action)
            self._write(seen[row], observation)
        terminated = np.array(ends, bool)
        return Stepped(seen, np.array(reward, np.float64), terminated, np.array(cut, bool) & ~terminated)

    def render(self, which: int) -> Any:
        """What an environment shows of itself, in the mode it was made with."""
        return self._envs[which].render()

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _as_taken(self, actions: np.ndarray) -> Any:
        space = self.task.action_space
        if not self.task.continuous:
            return (actions + int(space.start)).tolist()
        return np.clip(actions.reshape(-1, *space.shape), space.low, space.high).astype(space.dtype, copy=False)

    def _write(self, flat: np.ndarray, observation: Any) -> None:
        if self._one_hot:
            flat[int(observation) - self._first] = 1.0
        else:
            flat[:] = observation if flat.shape == np.shape(observation) else np.reshape(observation, -1)


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise MissingExtra("gymnasium is", install_extra("control")) from None
    return gymnasium


def _make(env_id: str, options: dict[str, Any]) -> Any:
    """``gymnasium.make``, its errors turned into ones that say what to type."""
    gymnasium = _gymnasium()
    known = gymnasium.registry.get(env_id)
    if known is not None and "mujoco" in str(known.entry_point):
        _hear_mujoco()
    try:
        return gymnasium.make(env_id, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        if "mujoco" in str(error).lower():
            raise MissingExtra("mujoco is", install_extra("control")) from error
        raise TaskError(f"gym:{env_id} needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ImportError) as error:
        # A removed version fails on import, a wrong name in the registry: to the user both are an id that is not there.
        near = did_you_mean(env_id, _newest_ids(gymnasium.registry))
        raise TaskError(f"no usable gymnasium environment {env_id!r}.{near} Gymnasium says: {error}") from error
    except TypeError as error:
        if not options:
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise TaskError(f"gym:{env_id} could not be made with {given}: {error}") from error


def _hear_mujoco() -> None:
    """Send MuJoCo's warnings through Python's, which say a thing once.

    Left alone it repeats them for every environment and writes a log file into whatever folder the user stands in.
    """
    try:
        import mujoco
    except ImportError:
        return  # gymnasium is about to say so
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(lambda message: warnings.warn(f"MuJoCo: {message}", stacklevel=2))


def _newest_ids(registry: dict[str, Any]) -> list[str]:
    """The newest version of each environment: older ones are mostly there to say that they have moved."""
    newest: dict[str, tuple[int, str]] = {}
    for known in registry:
        match = re.fullmatch(r"(.+?)(?:-v(\d+))?", known)
        family, version = (match[1], int(match[2] or 0)) if match else (known, 0)
        newest[family] = max(newest.get(family, (-1, "")), (version, known))
    return [known for _, known in newest.values()]


def _observation_size(name: str, space: Any) -> int:
    spaces = _gymnasium().spaces
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if not isinstance(space, spaces.Box):
        raise TaskError(f"{name} has observations {space}; only Box and Discrete can be used. "
                        "Register it with gymnasium's FlattenObservation wrapper around it.")  # fmt: skip
    if len(space.shape) >= 2 and space.dtype == np.uint8:
        raise TaskError(f"{name} has images as observations, {space}; a policy for vectors cannot use them. "
                        "Use an environment that reports its state as numbers.")  # fmt: skip
    return int(np.prod(space.shape))


def _action_size(name: str, space: Any) -> tuple[bool, int]:
    spaces = _gymnasium().spaces
    if isinstance(space, spaces.Discrete):
        return False, int(space.n)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return True, int(np.prod(space.shape))
    raise TaskError(f"{name} has actions {space}; only Discrete and a Box of floats can be used.")
