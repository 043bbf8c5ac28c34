"""Entry points: what installed packages declare for upslope, by group, with the package's name and version.

A package says in its ``pyproject.toml`` what it brings::

    [project.entry-points."upslope.parts"]      # modules with parts
    acme = "acme_rl.parts"
    [project.entry-points."upslope.methods"]    # modules with methods, or single methods
    acme = "acme_rl.methods"
    [project.entry-points."upslope.tasks"]      # classes of tasks, by the name that --task takes
    maze = "acme_rl.tasks:Maze"
    [project.entry-points."upslope.rewards"]    # functions, by the name that --reward takes
    short = "acme_rl.rewards:short"

Nothing of a package is imported before it is asked for, and nothing is imported because a file names a module.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from upslope.errors import UserError, did_you_mean, pip_install

PARTS, METHODS, TASKS, REWARDS = "upslope.parts", "upslope.methods", "upslope.tasks", "upslope.rewards"
GROUPS = (PARTS, METHODS, TASKS, REWARDS)
"""All groups of entry points that upslope reads."""


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package.

    Fields:
        package: the package's name, as pip normalises it (``acme-rl``).
        name: the entry point's own name, left of the equals sign.
        value: the module, or the object in it (``acme_rl.parts``, ``acme_rl.tasks:Maze``).
    """

    package: str
    version: str
    name: str
    value: str
    _point: importlib.metadata.EntryPoint = field(repr=False, compare=False)

    def load(self) -> Any:
        """Imports what the entry point names.

        Raises:
            UserError: if that fails, whatever the package's own code raised.
        """
        try:
            return self._point.load()
        except Exception as error:
            raise UserError(
                f"the package {self.package} {self.version} cannot be used: its entry point {self._point.group} {self.name} = "
                f"{self.value!r} raised {type(error).__name__}: {error}. Reinstall it, or ask its authors."
            ) from error


def plugins(group: str) -> list[Plugin]:
    """The entry points of a group, such as ``upslope.parts``, in the order of package and name."""
    found = {
        (package, point.name): Plugin(package, point.dist.version, point.name, point.value, point)
        for point in importlib.metadata.entry_points(group=group)
        if point.dist is not None and (package := normalised(point.dist.name))
    }
    return [found[key] for key in sorted(found)]


def named(group: str, name: str) -> Plugin | None:
    """The entry point of this name: ``maze``, or ``acme-rl/maze`` where several packages have one.

    Raises:
        UserError: if several packages have one and the name does not say which.
    """
    package, slash, short = name.rpartition("/")
    found = [each for each in plugins(group) if each.name == short and (not slash or each.package == normalised(package))]
    if len(found) > 1:
        full = " or ".join(f"{each.package}/{short}" for each in found)
        raise UserError(f"{len(found)} packages declare {short!r} under the entry point {group!r}. Say which: {full}.")
    return found[0] if found else None


def full_name(spec: str, plugin: Plugin | None) -> str:
    """What a file calls a task or reward of a package: with the package, so that no other may ever take its place.

    Args:
        spec: the name, perhaps with knobs behind a colon.
    """
    if plugin is None:
        return spec
    _, colon, knobs = spec.partition(":")
    return f"{plugin.package}/{plugin.name}{colon}{knobs}"


def normalised(package: str) -> str:
    """A package's name in the one spelling that pip compares names in."""
    return re.sub(r"[-_.]+", "-", package).lower()


def installed_version(package: str) -> str:
    """The version of an installed package; nothing if it is not installed.

    Raises:
        UserError: if that is no name of a package. A file may hold anything, and messages show it in a command.
    """
    if not re.fullmatch(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", package, re.ASCII):
        raise UserError(f"{package[:60]!r} is no name of a package.")
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def missing(package: str, group: str, needed_for: str, version: str = "") -> UserError:
    """The error for a package that does not declare what a run needs: not installed, or without such an entry point."""
    if installed := installed_version(package):
        why = f"the package {package} {installed} declares nothing under the entry point {group!r}"
        return UserError(f"{needed_for}, and {why}. Install the version that does: {_command(package, version)}")
    near = did_you_mean(package, {each.package for each in plugins(group)})
    return UserError(f"{needed_for}, and the package {package} is not installed.{near} Install it: {_command(package, version)}")


def changed_versions(recorded: Mapping[str, object], groups: Iterable[str] = GROUPS) -> list[str]:
    """What to tell the user where packages are not of the version a run recorded. Those that are missing are an error.

    Args:
        recorded: versions by package, as ``run.toml`` has them.
        groups: entry points of which the package must declare one.
    """
    remarks: list[str] = []
    if not recorded:
        return remarks
    declared = {each.package for group in groups for each in plugins(group)}
    for package, version in sorted((package, str(version)) for package, version in recorded.items()):
        if normalised(package) not in declared:
            raise missing(package, "', '".join(groups), f"this run was made with {package} {version}", version)
        if (now := installed_version(package)) != version:
            remarks.append(
                f"this run was made with {package} {version}, and {now} is installed: its code may do something else by now. "
                f"The old version: {_command(package, version)}"
            )
    return remarks


def _command(package: str, version: str = "") -> str:
    return pip_install(f"{package}=={version}" if re.fullmatch(r"[\w.+!-]+", version, re.ASCII) else package)
