"""``gymnasium.make`` with errors that say what to type. It is imported when the first environment is made."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

from upslope.errors import MissingExtra, TaskError, did_you_mean, install_extra
from upslope.plain_data import JsonDict
from upslope.tasks import env_packages
from upslope.tasks.rendering import use_no_display

BROKEN_ROBOTS = r"Fetch|HandReach|HandManipulate|FrankaKitchen"
"""Families of gymnasium-robotics 1.4 whose joints it no longer recognises with MuJoCo 4."""


def as_arguments(options: JsonDict) -> str:
    """Arguments as they would be typed."""
    return ", ".join(f"{key}={value!r}" for key, value in options.items())


def gymnasium_module() -> Any:
    """The package, or the command that installs it."""
    try:
        import gymnasium
    except ImportError:
        raise MissingExtra("gymnasium is", install_extra("control")) from None
    return gymnasium


def make_by_id(env_id: str, options: JsonDict) -> Any:
    """An environment by its id, of gymnasium's own or of a package that is known here, seen as it is usually learned from."""
    registry, name = gymnasium_module().registry, f"gym:{env_id}"
    if env_id.startswith("visual-"):
        use_no_display()  # ogbench's: what they see is drawn, and MuJoCo looks for a display when it is first imported
    if ":" not in env_id and env_id not in registry:
        env_packages.register(env_id, name)
        if _family(env_id) not in map(_family, registry):
            env_packages.register_all()  # older ids of a package say nothing of it; and near names are looked for among all
    known = registry.get(env_id.rpartition(":")[2])
    package = env_packages.package_of(env_id)
    module = str(known.entry_point).partition(".")[0] if known is not None else package.module if package else ""
    if module == "ale_py":
        from upslope.tasks.atari import make_game

        return make_game(env_id, options, name)
    if module == "minigrid":
        from upslope.tasks.minigrid_view import make_grid

        return make_grid(env_id, options, name)
    return make_env(env_id, options)


def time_limit(env: Any) -> int | None:
    """Steps after which an environment's episodes are cut, or nothing where they can go on for ever."""
    if env.has_wrapper_attr("phase_steps"):  # of a task without resets; it counts in place of the environment's own
        return env.get_wrapper_attr("phase_steps")
    limit = getattr(env.spec, "max_episode_steps", None)
    if limit is None and "ale_py" in sys.modules and isinstance(env.unwrapped, sys.modules["ale_py"].AtariEnv):
        from upslope.tasks.atari import frame_limit

        limit = frame_limit(env)
    elif limit is None and "minigrid" in sys.modules:
        from upslope.tasks.minigrid_view import step_limit

        limit = step_limit(env)
    return limit if limit is not None and limit > 0 else None  # -1 takes a limit away


def reset_free(env: Any, backward: Callable[[Any], bool], steps: int, forward_only: bool = False) -> Any:
    """An environment that is reset once: a second task brings back what the first one did, and the two take turns.

    Each begins where the other ended. The number of the task, 0 or 1, is the last one of an observation, and with the knobs
    ``policy.pair``, ``models.q.network.pair`` and ``models.temperature.pair`` a method has networks of their own for each.

    Args:
        env: A ``gymnasium.Env`` whose observations are a vector of numbers, and which can go on behind its end. Forward it pays and
            terminates as it always did. If it has ``get_state()``, which gives numbers, and ``set_state(numbers)``, a run that was
            interrupted goes on where it was; otherwise from a reset.
        backward: Says of the environment's own observation whether all is back; that pays 1, else 0, and ends the way back.
        steps: The most steps that one task may take before it is the other's turn. More gives a policy that has learned little the
            time to arrive.
        forward_only: The first task alone, with a reset for each episode, as ``--test-task``: where the policy of a pair is judged.

    Returns:
        A ``gymnasium.Env``.

    Raises:
        TaskError: if it cannot be made so.

    Example:
        >>> import gymnasium, upslope as up
        >>> car = gymnasium.make("MountainCarContinuous-v0")
        >>> pair = up.reset_free(car, backward=lambda seen: abs(seen[0] + 0.5) < 0.1, steps=200)
        >>> pair.observation_space.shape, pair.reset(seed=0)[0][-1].item()
        ((3,), 0.0)
    """
    gymnasium_module()
    from upslope.tasks.reset_free import ResetFree

    return ResetFree(env, backward, steps, forward_only)


def stacked_frames(env: Any) -> int:
    """Frames that gymnasium stacks in an observation, a new episode's first one repeated; 1 where nobody is known to."""
    wrappers = gymnasium_module().wrappers
    while isinstance(env, (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker, wrappers.ClipReward)):
        env = env.env
    stacks = isinstance(env, wrappers.FrameStackObservation) and env.padding_type == "reset"
    return env.stack_size if stacks else 1


def make_env(env: Any, options: JsonDict, name: str = "") -> Any:
    """``gymnasium.make``, its errors turned into ones that say what to type.

    Args:
        env: an id, or what is registered under one.
        name: of the task, where it is not ``gym:`` and the id.
    """
    gymnasium = gymnasium_module()
    env_id = env if isinstance(env, str) else env.id
    name = name or f"gym:{env_id}"
    known = gymnasium.registry.get(env_id)
    if known is not None and "mujoco" in str(known.entry_point):
        _hear_mujoco()
    try:
        return gymnasium.make(env, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        if "mujoco_py" in str(error):
            near = did_you_mean(env_id, [each for each in _newest_ids(gymnasium.registry) if each != env_id])
            raise TaskError(f"{name} is for mujoco_py, which is no longer there.{near}") from error
        if "mujoco" in str(error).lower():
            raise MissingExtra("mujoco is", install_extra("control")) from error
        raise TaskError(f"{name} needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ImportError) as error:
        # A removed version fails on import, a wrong name in the registry: to the user both are an id that is not there.
        near = did_you_mean(env_id, _newest_ids(gymnasium.registry))
        raise TaskError(f"no usable gymnasium environment {env_id!r}.{near} Gymnasium says: {error}") from error
    except (Exception, SystemExit) as error:  # of its module or its making, which may do anything
        if re.match(BROKEN_ROBOTS, env_id) and isinstance(error, AssertionError):
            there = " and ".join(f"{each} {metadata.version(each)}" for each in ("gymnasium-robotics", "mujoco"))
            raise TaskError(
                f"{name} cannot be made: its robots do not go together with what is installed, {there}. PointMaze, AntMaze and "
                "AdroitHand of the same package do."
            ) from error
        given = as_arguments(options)
        told = " ".join(f"{type(error).__name__}: {error}".split())
        cure = ". MuJoCo draws what it sees by OpenGL: set MUJOCO_GL=egl or MUJOCO_GL=osmesa first" if "OpenGL" in told else ""
        raise TaskError(f"{name} could not be made{f' with {given}' if given else ''}: {told}{cure}") from error


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


def _family(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)


def _newest_ids(registry: JsonDict) -> list[str]:
    """The newest version of each environment: older ones are mostly there to say that they have moved."""
    newest: dict[str, tuple[int, str]] = {}
    for known in registry:
        match = re.fullmatch(r"(.+?)(?:-v(\d+))?", known)
        family, version = (match[1], int(match[2] or 0)) if match else (known, 0)
        newest[family] = max(newest.get(family, (-1, "")), (version, known))
    return [known for _, known in newest.values()]
