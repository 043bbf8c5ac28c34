"""Packages whose environments are found by their ids alone: imported when such an id is asked for, named where they are missing.

Importing is what registers them with gymnasium. It takes up to a second, so a package is imported for its own ids only, and all
that are installed before an id counts as unknown.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from upslope.errors import MissingExtra, TaskError, install_extra


@dataclass(frozen=True)
class EnvPackage:
    """A package that registers environments when it is imported.

    Fields:
        module: what is imported.
        package: its name for pip.
        extra: ours that installs it.
        ids: how its ids begin, as a pattern.
    """

    module: str
    package: str
    extra: str
    ids: str


PACKAGES = (
    EnvPackage("upslope.tasks.worlds.registered", "upslope", "control", r"upslope/"),
    EnvPackage("ale_py", "ale-py", "atari", r"ALE/|\w+NoFrameskip-v"),
    EnvPackage("minigrid", "minigrid", "minigrid", r"MiniGrid-|BabyAI-"),
    EnvPackage(
        "gymnasium_robotics",
        "gymnasium-robotics",
        "robotics",
        r"PointMaze_|AntMaze_|Fetch[A-Z]|Hand(Reach|Manipulate)|AdroitHand|FrankaKitchen",
    ),
    EnvPackage(
        "ogbench", "ogbench", "ogbench", r"(visual-)?(pointmaze|antmaze|humanoidmaze|antsoccer|cube|scene|puzzle|powderworld)-"
    ),
)


def package_of(env_id: str) -> EnvPackage | None:
    """The package that an id belongs to, by how it begins."""
    return next((each for each in PACKAGES if re.match(each.ids, env_id)), None)


def register(env_id: str, name: str = "") -> None:
    """Makes an id of one of these packages known to gymnasium; others are left alone.

    Args:
        name: of the task, for messages.

    Raises:
        MissingExtra: if its package is not installed.
    """
    if (package := package_of(env_id)) is None:
        return
    if importlib.util.find_spec(package.module) is None:
        raise MissingExtra(f"{name or env_id} is an environment of {package.package}, which is", install_extra(package.extra))
    try:
        _load(package)
    except Exception as error:  # of a package that is broken or does not go with what else is installed
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise TaskError(f"{name or env_id} needs {package.package}, which cannot be imported: {told}") from error


def register_all() -> None:
    """Makes the environments of every package that is installed known to gymnasium."""
    for package in PACKAGES:
        try:
            if importlib.util.find_spec(package.module) is not None:
                _load(package)
        except Exception:  # nobody asked for this one
            continue


def _load(package: EnvPackage) -> None:
    if package.module in sys.modules:
        return
    gymnasium: Any = importlib.import_module("gymnasium")
    kept = dict(gymnasium.registry)
    # gymnasium-robotics says at every import, by both ways, what it changed years ago.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        importlib.import_module(package.module)
    # It also registers old versions of gymnasium's own, for a MuJoCo that nobody has; gymnasium's say what to use instead.
    gymnasium.registry.update(kept)
