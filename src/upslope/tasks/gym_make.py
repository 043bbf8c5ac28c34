"""``gymnasium.make`` with errors that say what to type. It is imported when the first environment is made."""

from __future__ import annotations

import re
import warnings
from typing import Any

from upslope.errors import MissingExtra, TaskError, did_you_mean, install_extra
from upslope.plain_data import JsonDict


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
        if "mujoco" in str(error).lower():
            raise MissingExtra("mujoco is", install_extra("control")) from error
        raise TaskError(f"{name} needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ImportError) as error:
        # A removed version fails on import, a wrong name in the registry: to the user both are an id that is not there.
        near = did_you_mean(env_id, _newest_ids(gymnasium.registry))
        raise TaskError(f"no usable gymnasium environment {env_id!r}.{near} Gymnasium says: {error}") from error
    except (Exception, SystemExit) as error:  # of its module or its making, which may do anything
        given = as_arguments(options)
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise TaskError(f"{name} could not be made{f' with {given}' if given else ''}: {told}") from error


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
