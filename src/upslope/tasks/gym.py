"""Gymnasium environments as tasks: spaces made flat, errors made plain, terminations and truncations kept apart.

Neither torch nor gymnasium is imported until a task is made, so that the command line's help stays fast. Left out: images,
dictionaries and multi-part actions (they are refused by name), and gymnasium's own vector environments. A plain loop over single
environments is about a quarter faster than the synchronous one, and it shows the last observation of an episode and the first of
the next side by side, so that nobody can bootstrap from the wrong one. Simulators that take long are spread over processes
(`upslope.tasks.env_workers`).
"""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from upslope.errors import MissingExtra, TaskError, did_you_mean, install_extra
from upslope.plain_data import JsonDict

if TYPE_CHECKING:
    from upslope.tasks.env_workers import SpreadEnvironments

MOST_WATCHED = 10_000
"""Steps after which watching or evaluating an episode ends where the environment has no limit of its own."""


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
        remarks: What a user should know of it before a run begins.
    """

    domain = "control"

    def __init__(self, env_id: str, **make_options: Any) -> None:
        self.env_id, self.options = env_id, make_options
        env = self.make_one()
        try:
            self.env_id = env_id if ":" in env_id else env.spec.id  # an id without a version stands for the newest one
            self.name = f"gym:{self.env_id}"
            self.observation_space, self.action_space = env.observation_space, env.action_space
            limit = env.spec.max_episode_steps
            self.max_episode_steps: int | None = limit if limit is not None and limit > 0 else None  # -1 takes a limit away
            self.solved: float | None = env.spec.reward_threshold
        finally:
            env.close()
        self.observation_size = _observation_size(self.name, self.observation_space)
        self.continuous, self.action_size = _action_size(self.name, self.action_space)
        self.remarks: tuple[str, ...] = () if self.max_episode_steps else (
            f"{self.name} has no time limit. An episode of an evaluation is cut after {MOST_WATCHED:,} steps; "
            f"gym:{self.env_id}:max_episode_steps=500 sets a limit for training and evaluation.",
        )  # fmt: skip

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
    def again(cls, env_id: str, options: JsonDict, registered: object) -> GymTask:
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
        self._steps = [0] * count
        self._zeros = np.zeros(count * task.observation_size, np.float32)
        self._one_hot = not task.observation_space.shape and hasattr(task.observation_space, "n")
        self._first = int(getattr(task.observation_space, "start", 0))

    def __len__(self) -> int:
        return len(self._envs)

    def reset(self, which: int, seed: int | None = None) -> np.ndarray:
        """The first observation ``[D]`` of a new episode; without a seed the environment goes on with its own numbers."""
        self._steps[which] = 0
        try:
            returned = self._envs[which].reset(seed=seed)
        except (Exception, SystemExit) as error:
            raise self._raised("reset()", which, error) from error
        flat = np.zeros(self.task.observation_size, np.float32)
        try:
            observation, _ = returned
            self._write(flat, observation)
        except (TypeError, ValueError) as error:
            raise self._wrong("reset()", returned, "an observation and a dict", error) from error
        if not np.isfinite(flat).all():
            raise self._not_finite("reset()", "observation", observation)
        return flat

    def step(self, actions: np.ndarray, which: Sequence[int]) -> Stepped:
        """Step the environments ``which`` with one action each: ids ``[B]`` or vectors ``[B, D]``. Nothing is reset."""
        count = len(which)
        seen = np.zeros((count, self.task.observation_size), np.float32)
        reward: list[object] = [0.0] * count
        ends, cut = [False] * count, [False] * count
        for row, (action, env) in enumerate(zip(self._as_taken(actions), which, strict=True)):
            self._steps[env] += 1
            try:
                returned = self._envs[env].step(action)
            except (Exception, SystemExit) as error:
                raise self._raised(f"step({action})", env, error) from error
            try:
                observation, reward[row], ends[row], cut[row], _ = returned
                self._write(seen[row], observation)
            except (TypeError, ValueError) as error:
                wanted = "observation, reward, terminated, truncated and a dict"
                raise self._wrong(f"step({action})", returned, wanted, error, env) from error
        terminated = np.array(ends, bool)
        return Stepped(seen, self._checked(seen, reward, which), terminated, np.array(cut, bool) & ~terminated)

    def _checked(self, seen: np.ndarray, rewards: list[Any], which: Sequence[int]) -> np.ndarray:
        """The rewards as numbers; they and the observations must be finite."""
        try:
            # What is not finite leaves no zero when it is multiplied with one: a third of the time of numpy's isfinite.
            fine = seen.reshape(-1).dot(self._zeros[: seen.size]) == 0 and sum(rewards) * 0 == 0
            if fine and (paid := np.array(rewards, np.float64)).ndim == 1:
                return paid
        except (TypeError, ValueError):
            pass  # some reward is no number; which one is found below
        for row, (reward, env) in enumerate(zip(rewards, which, strict=True)):
            if not _is_finite_number(reward):
                raise self._not_finite("step()", "reward", reward, env)
            if not np.isfinite(seen[row]).all():
                raise self._not_finite("step()", "observation", seen[row], env)
        return np.array([float(reward) for reward in rewards])  # arrays of one number each, or a sum that overflowed

    def _raised(self, call: str, env: int, error: BaseException) -> TaskError:
        return TaskError(f"{self.task.name} raised {_in_words(error, self._envs[env])} in {call}{self._when(env)}.")

    def _wrong(self, call: str, returned: object, wanted: str, error: Exception, env: int | None = None) -> TaskError:
        size = self.task.observation_size
        return TaskError(f"{self.task.name} returned {_short(returned)} from {call}{self._when(env)} ({error}); gymnasium wants "
                         f"{wanted}, and this environment declared observations of {size} numbers.")  # fmt: skip

    def _not_finite(self, call: str, what: str, value: object, env: int | None = None) -> TaskError:
        return TaskError(f"{self.task.name} gave the {what} {_short(value)}, which is not a finite number, from {call}"
                         f"{self._when(env)}. Its simulation has diverged, or the environment has a fault.")  # fmt: skip

    def _when(self, env: int | None) -> str:
        return f" at step {self._steps[env]} of an episode" if env is not None and self._steps[env] else ""

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
            place = int(observation) - self._first
            if not 0 <= place < len(flat):
                raise ValueError(f"{observation} is not in {self.task.observation_space}")
            flat[place] = 1.0
            return
        if flat.shape != np.shape(observation):
            observation = np.reshape(observation, -1)
            if observation.shape != flat.shape:
                raise ValueError(f"it has {len(observation)} numbers")
        flat[:] = observation


def _is_finite_number(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def _in_words(error: BaseException, env: object) -> str:
    """An error of an environment, with the last line of its file that it passed through."""
    file = getattr(sys.modules.get(type(getattr(env, "unwrapped", env)).__module__), "__file__", "")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return f"{said} ({Path(file).name}, line {lines[-1]})" if lines else said


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise MissingExtra("gymnasium is", install_extra("control")) from None
    return gymnasium


def _make(env_id: str, options: JsonDict) -> Any:
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
    except (Exception, SystemExit) as error:  # of its module or its making, which may do anything
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise TaskError(f"gym:{env_id} could not be made{f' with {given}' if given else ''}: {told}") from error


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


def _newest_ids(registry: JsonDict) -> list[str]:
    """The newest version of each environment: older ones are mostly there to say that they have moved."""
    newest: dict[str, tuple[int, str]] = {}
    for known in registry:
        match = re.fullmatch(r"(.+?)(?:-v(\d+))?", known)
        family, version = (match[1], int(match[2] or 0)) if match else (known, 0)
        newest[family] = max(newest.get(family, (-1, "")), (version, known))
    return [known for _, known in newest.values()]


def _observation_size(name: str, space: object) -> int:
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


def _action_size(name: str, space: object) -> tuple[bool, int]:
    spaces = _gymnasium().spaces
    if isinstance(space, spaces.Discrete):
        return False, int(space.n)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return True, int(np.prod(space.shape))
    raise TaskError(f"{name} has actions {space}; only Discrete and a Box of floats can be used.")
