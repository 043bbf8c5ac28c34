"""Gymnasium environments as tasks: spaces made flat, errors made plain, terminations and truncations kept apart.

Neither torch nor gymnasium is imported until a task is made, so that the command line's help stays fast. Left out: images beside
numbers and trees of actions (they are refused by name), and gymnasium's own vector environments. A plain loop over single
environments is about a quarter faster than the synchronous one, and it shows the last observation of an episode and the first of
the next side by side, so that nobody can bootstrap from the wrong one. Simulators that take long are spread over processes
(`upslope.tasks.env_workers`).
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from upslope.errors import TaskError
from upslope.plain_data import JsonDict
from upslope.tasks.action_masks import ActionMasks
from upslope.tasks.env_sources import ById, EnvSource
from upslope.tasks.gym_make import stacked_frames, time_limit
from upslope.tasks.levels import LEVELS, Level, LevelPhysics, Levels
from upslope.tasks.physics import PARAMS, Physics
from upslope.tasks.rendering import simplify
from upslope.tasks.spaces import action_components, action_size, actions_taken, observation_layout, without_mask

if TYPE_CHECKING:
    from upslope.tasks.env_workers import SpreadEnvironments

MOST_WATCHED = 10_000
"""Steps after which watching or evaluating an episode ends where the environment has no limit of its own."""


class Stepped(NamedTuple):
    """What a step of several environments gave; row ``b`` belongs to the b-th environment that was stepped."""

    observation: np.ndarray
    """``[B, D]`` float32, or ``[B, *shape]`` bytes of images, before any reset: where an episode ended, its final observation."""
    reward: np.ndarray
    """``[B]`` float64, raw."""
    terminated: np.ndarray
    truncated: np.ndarray
    """Never together with ``terminated``: an episode that ended of itself was not cut."""


class GymTask:
    """A gymnasium environment. It is looked at once, when the task is made: what cannot be used is refused there.

    Args:
        env: Its id as gymnasium knows it, ``"CartPole-v1"`` (``"package.module:MyEnv-v0"`` imports the module first), or where else
            it comes from (`upslope.tasks.env_sources`).
        make_options: Handed to whatever makes it: an environment's own settings, or ``max_episode_steps``. Those that begin with
            ``params.`` change its physics once it is made (`upslope.tasks.physics`), those with ``levels.`` in every episode
            (`upslope.tasks.levels`).

    Attributes:
        name: ``"gym:CartPole-v1"``; changed physics are in it, ``"gym:Pendulum-v1:params.gravity=12"``, and levels.
        levels: What episodes differ in; false if in nothing.
        observation_shape: Of an observation as `Environments` give it: ``(D,)``, that of an image, or ``(bytes,)`` of both.
        observation_dtype: float32, or uint8 for images.
        frames: Of an image: how many frames are stacked in it, all but the newest of them known from the last one; else 1.
        observation_size: Numbers in an observation: a Box flattened, a Discrete one-hot, a Dict or Tuple one after the other.
        action_space: Gymnasium's.
        continuous: Whether actions are vectors (Box) rather than choices (Discrete, MultiDiscrete, MultiBinary).
        action_size: Choices, those of all components together, or dimensions.
        components: Choices of each component of a MultiDiscrete or MultiBinary; of other actions nothing.
        mask_in_observation: Whether observations say which choices are allowed; the policy is not shown that part.
        max_episode_steps: The time limit, or ``None`` where episodes can go on for ever.
        solved: The mean return at which the environment counts as solved, if it names one.
        is_pair: Whether the last number of an observation says which of two tasks is to be done (`upslope.tasks.reset_free`).
        remarks: What a user should know of it before a run begins.
    """

    domain = "control"

    def __init__(self, env: str | EnvSource, /, **make_options: Any) -> None:
        self.source: EnvSource = ById(env) if isinstance(env, str) else env
        self.options = make_options
        self.physics = Physics.parse(self.options, self.source.name)
        self.levels = Levels.parse(self.options, self.source.name)
        made = self.make_one()
        try:
            self.levels.check(made)
            self.source = self.source.settled(made)
            changed = ",".join(map(str, (*self.physics.changes, *self.levels.axes)))
            self.name = f"{self.source.name}{':' if changed else ''}{changed}"
            self.observation_space, self.action_space = made.observation_space, made.action_space
            self.max_episode_steps: int | None = time_limit(made)
            self.solved: float | None = getattr(made.spec, "reward_threshold", None)
            self.is_pair = made.has_wrapper_attr("phase_steps")
            self._can_go_on = not self.is_pair or bool(made.get_wrapper_attr("can_go_on"))
            frames = stacked_frames(made)
        finally:
            made.close()
        self.continuous, self.action_size = action_size(self.name, self.action_space)
        self.components = action_components(self.action_space)
        seen = self.observation_space if self.continuous else without_mask(self.observation_space, self.action_size)
        self.mask_in_observation = seen is not self.observation_space
        self.layout = observation_layout(self.name, seen)
        self.observation_shape, self.observation_dtype = self.layout.shape, self.layout.dtype
        self.observation_size = prod(self.observation_shape)
        self.frames = frames if self.layout.is_image and not self.layout.is_tree else 1
        self.remarks: tuple[str, ...] = (*self._without_limit(), *self._without_text(), *self._without_state())

    def _without_limit(self) -> Iterator[str]:
        if not self.max_episode_steps:
            yield (
                f"{self.name} has no time limit. An episode of an evaluation is cut after {MOST_WATCHED:,} steps; "
                f"{self.source.how_to_limit} sets a limit for training and evaluation."
            )

    def _without_text(self) -> Iterator[str]:
        if left_out := self.layout.left_out:
            yield f"{self.name} has text in its observations ({', '.join(left_out)}), which is left out: the policy sees the rest."

    def _without_state(self) -> Iterator[str]:
        if not self._can_go_on:
            yield (
                f"{self.name} is not reset, and it has no get_state() and set_state(): a run that is interrupted and resumed "
                "goes on from a reset, not from where it was."
            )

    def make_one(self, **options: Any) -> Any:
        """One plain ``gymnasium.Env``; ``render_mode="human"`` to watch it."""
        asked = {key: value for key, value in {**self.options, **options}.items() if not key.startswith((PARAMS, LEVELS))}
        env = self.source.make(asked)
        self.physics.apply(env)
        if asked.get("render_mode") == "rgb_array":
            simplify(env)
        return env

    def shown(self, render_mode: str, **options: Any) -> GymTask:
        """The same task to be looked at."""
        return GymTask(self.source, **self.options, **options, render_mode=render_mode)

    def make(self, envs: int, workers: int = 1) -> Environments | SpreadEnvironments:
        """That many environments, stepped together: in this process, or spread over ``workers`` of which it is one."""
        if min(workers, envs) <= 1:
            return Environments(self, envs)
        from upslope.tasks.env_workers import SpreadEnvironments

        return SpreadEnvironments(self, envs, min(workers, envs))

    def __repr__(self) -> str:
        return f"GymTask({', '.join([repr(self.source.text), *(f'{key}={value!r}' for key, value in self.options.items())])})"


class Environments:
    """Several environments of one task: flat float32 observations or images out, actions in as a policy gives them.

    Box actions are clipped to the space here and nowhere else: what a policy learns from is the action it drew, whose
    probability it knows; what the environment sees is the nearest one it allows.
    """

    def __init__(self, task: GymTask, count: int) -> None:
        if count < 1:
            raise TaskError(f"{task.name}: asked for {count} environments; at least 1 is needed.")
        self.task = task
        self._envs = [task.make_one() for _ in range(count)]
        choices = 0 if task.continuous else task.action_size
        self._masks = ActionMasks(self._envs, choices, task.components, task.mask_in_observation)
        self._physics = [LevelPhysics(env, task.levels) for env in self._envs] if task.levels else []
        self._levels: list[Level | None] = [None] * count
        self._steps = [0] * count
        self._write = task.layout.writer()
        self._shape, self._dtype = task.observation_shape, task.observation_dtype
        # Bytes are always finite.
        numbers = task.layout.numbers(np.zeros((count, *self._shape), self._dtype))
        self._zeros = numbers.reshape(-1) if numbers.size else None

    def __len__(self) -> int:
        return len(self._envs)

    @property
    def action_masks(self) -> np.ndarray | None:
        """``[envs, choices]`` booleans, of each environment's last observation; none where it gives none, or before a reset."""
        return self._masks.allowed

    def reset(self, which: int, seed: int | None = None, level: Level | None = None) -> np.ndarray:
        """The first observation of a new episode, ``[D]`` or an image; without a seed the environment goes on with its own.

        Args:
            level: Where the task has levels, that of the episode; left out, the seed draws it.
        """
        self._steps[which] = 0
        if self._physics:
            seed = self._enter(which, seed, level)
        try:
            returned = self._envs[which].reset(seed=seed)
        except (Exception, SystemExit) as error:
            raise self._raised("reset()", which, error) from error
        flat = np.zeros(self._shape, self._dtype)
        try:
            observation, info = returned
            self._write(flat, observation)
        except (TypeError, ValueError) as error:
            raise self._wrong("reset()", returned, "an observation and a dict", error) from error
        if self._zeros is not None and not np.isfinite(self.task.layout.numbers(flat)).all():
            raise self._not_finite("reset()", "observation", observation)
        try:
            self._masks.look(which, observation, info)
        except ValueError as error:
            raise self._masked_wrongly("reset()", error) from error
        return flat

    def _enter(self, which: int, seed: int | None, level: Level | None) -> int | None:
        """Sets the physics of the next episode; the seed it begins with."""
        if level is None and seed is not None:
            level = self.task.levels.draw(seed)
        if level is None:
            return seed
        self._physics[which].set(level)
        self._levels[which] = level
        return seed if level.seed is None else level.seed

    def level(self, which: int) -> Level | None:
        """The level that an environment is in, where the task has any."""
        return self._levels[which]

    def step(self, actions: np.ndarray, which: Sequence[int]) -> Stepped:
        """Step the environments ``which`` with one action each: ids ``[B]``, of components ``[B, K]``, or vectors ``[B, D]``.

        Nothing is reset.
        """
        count, write, masks = len(which), self._write, self._masks
        seen = np.zeros((count, *self._shape), self._dtype)
        reward: list[object] = [0.0] * count
        ends, cut, masked = [False] * count, [False] * count, masks.allowed is not None
        for row, (action, env) in enumerate(zip(self._as_taken(actions), which, strict=True)):
            self._steps[env] += 1
            try:
                returned = self._envs[env].step(action)
            except (Exception, SystemExit) as error:
                raise self._raised(f"step({action})", env, error) from error
            try:
                observation, reward[row], ends[row], cut[row], info = returned
                write(seen[row], observation)
            except (TypeError, ValueError) as error:
                wanted = "observation, reward, terminated, truncated and a dict"
                raise self._wrong(f"step({action})", returned, wanted, error, env) from error
            if masked or (info and masks.came_late(info)):
                self._take_mask(f"step({action})", env, observation, info, bool(ends[row] or cut[row]))
        terminated = np.array(ends, bool)
        return Stepped(seen, self._checked(seen, reward, which), terminated, np.array(cut, bool) & ~terminated)

    def _checked(self, seen: np.ndarray, rewards: list[Any], which: Sequence[int]) -> np.ndarray:
        """The rewards as numbers; they and the observations must be finite."""
        numbers = self.task.layout.numbers(seen)
        try:
            # What is not finite leaves no zero when it is multiplied with one: a third of the time of numpy's isfinite.
            fine = self._zeros is None or numbers.reshape(-1).dot(self._zeros[: numbers.size]) == 0
            fine = fine and sum(rewards) * 0 == 0
            if fine and (paid := np.array(rewards, np.float64)).ndim == 1:
                return paid
        except (TypeError, ValueError):
            pass  # some reward is no number; which one is found below
        for row, (reward, env) in enumerate(zip(rewards, which, strict=True)):
            if not _is_finite_number(reward):
                raise self._not_finite("step()", "reward", reward, env)
            if self._zeros is not None and not np.isfinite(numbers[row]).all():
                raise self._not_finite("step()", "observation", numbers[row], env)
        return np.array([float(reward) for reward in rewards])  # arrays of one number each, or a sum that overflowed

    def _take_mask(self, call: str, env: int, observation: Any, info: Any, ended: bool) -> None:
        try:
            if self._masks.allowed is None:
                raise ValueError("here is an action mask, and reset() gave none")
            self._masks.take(env, observation, info, ended)
        except ValueError as error:
            raise self._masked_wrongly(call, error, env) from error

    def _masked_wrongly(self, call: str, error: Exception, env: int | None = None) -> TaskError:
        return TaskError(f"{self.task.name}: {error}, from {call}{self._when(env)}. Every observation needs a mask, with a 1 for "
                         f"each choice of {self.task.action_space} that is allowed and a 0 for each other.")  # fmt: skip

    def _raised(self, call: str, env: int, error: BaseException) -> TaskError:
        return TaskError(f"{self.task.name} raised {_in_words(error, self._envs[env])} in {call}{self._when(env)}.")

    def _wrong(self, call: str, returned: object, wanted: str, error: Exception, env: int | None = None) -> TaskError:
        task = self.task
        return TaskError(f"{task.name} returned {_short(returned)} from {call}{self._when(env)} ({error}); gymnasium wants "
                         f"{wanted}, and this environment declared observations of {task.layout}.")  # fmt: skip

    def _not_finite(self, call: str, what: str, value: object, env: int | None = None) -> TaskError:
        return TaskError(f"{self.task.name} gave the {what} {_short(value)}, which is not a finite number, from {call}"
                         f"{self._when(env)}. Its simulation has diverged, or the environment has a fault.")  # fmt: skip

    def _when(self, env: int | None) -> str:
        return f" at step {self._steps[env]} of an episode" if env is not None and self._steps[env] else ""

    def states(self) -> list[JsonDict] | None:
        """Where environments that are never reset are, each in numbers; nothing for others, or if one does not say."""
        if not self.task.is_pair:
            return None
        found = [env.get_wrapper_attr("kept_state")() for env in self._envs]
        return None if None in found else found

    def restore(self, which: int, state: JsonDict) -> None:
        """Puts an environment to where it was; `reset` gives the observation there."""
        self.reset(which, 0)
        self._envs[which].get_wrapper_attr("go_on_from")(state)

    def simulator(self, which: int) -> Any:
        """The environment itself, without wrappers: for controllers that know more than they are shown."""
        return self._envs[which].unwrapped

    def render(self, which: int) -> Any:
        """What an environment shows of itself, in the mode it was made with."""
        return self._envs[which].render()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the environment says of itself, such as ``render_fps``."""
        return self._envs[0].metadata or {}

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _as_taken(self, actions: np.ndarray) -> Any:
        taken = actions_taken(self.task.action_space, actions)
        return taken if self.task.continuous or self.task.components else taken.tolist()


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
