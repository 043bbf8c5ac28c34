"""Where a task's environments come from: an id of gymnasium's, a class or function in a user's file, or a Python object.

A source makes one environment after the other, and is what other processes are told so that they can make theirs. Neither torch
nor gymnasium is imported until one is made.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.machinery
import inspect
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from upslope.errors import TaskError, UserError
from upslope.fields import shown
from upslope.plain_data import JsonDict
from upslope.runtime import user_code
from upslope.tasks.gym_make import as_arguments, gymnasium_module, make_by_id, make_env

_registered: dict[str, JsonDict] = {}
"""By the module of a user's file: what it registered with gymnasium when it was loaded."""


class EnvSource(Protocol):
    """Makes the environments of a task."""

    @property
    def name(self) -> str:
        """Of the task: the same in every process and after every move of the run."""

    @property
    def text(self) -> str:
        """What the user gave, for messages."""

    @property
    def how_to_limit(self) -> str:
        """What sets a time limit."""

    def make(self, options: JsonDict) -> Any:
        """One environment."""

    def settled(self, made: Any) -> EnvSource:
        """This source once it is known what it makes."""


@dataclass(frozen=True)
class ById:
    """An id that gymnasium knows, or learns from the module in front of it: ``module:Track-v0``."""

    env_id: str
    spec: Any = field(default=None, repr=False)
    """What is registered under it, for a process that does not know it yet."""

    @property
    def name(self) -> str:
        return f"gym:{self.env_id}"

    @property
    def text(self) -> str:
        return self.env_id

    @property
    def how_to_limit(self) -> str:
        return f"gym:{self.env_id}:max_episode_steps=500"

    def make(self, options: JsonDict) -> Any:
        if self.spec is not None:
            gymnasium_module().registry.setdefault(self.env_id, self.spec)
        return make_by_id(self.env_id, options)

    def settled(self, made: Any) -> ById:
        """An id without a version stands for the newest one."""
        env_id = self.env_id if ":" in self.env_id else made.spec.id
        return ById(env_id, gymnasium_module().registry.get(env_id))


@dataclass(frozen=True)
class InFile:
    """``my_env.py:Track``: an environment's class, a function that makes one, or an id that the file registers."""

    file: str
    attribute: str

    @property
    def name(self) -> str:
        return f"{Path(self.file).name}:{self.attribute}"

    @property
    def text(self) -> str:
        return f"{self.file}:{self.attribute}"

    @property
    def how_to_limit(self) -> str:
        return f"a function in {Path(self.file).name} that puts gymnasium's TimeLimit around it"

    def make(self, options: JsonDict) -> Any:
        module = load_environments(self.file)
        found = _in_module(module, self.attribute)
        if found is None:
            known = ", ".join(environments_in(self.file)) or "none"
            raise TaskError(f"{self.file!r} has no environment {self.attribute!r}. It has: {known}.")
        if not callable(found):
            return make_env(self._own(found, module), options, self.name)
        return _called(found, options, self.name, self.file)

    def settled(self, made: Any) -> InFile:
        return InFile(str(Path(self.file).expanduser().absolute()), self.attribute)

    def _own(self, spec: Any, module: Any) -> Any:
        """What the file registered, with the class itself where it is named by the file's name, under which nobody imports it."""
        where, _, attribute = spec.entry_point.partition(":") if isinstance(spec.entry_point, str) else ("", "", "")
        if where == Path(self.file).stem and hasattr(module, attribute):
            spec = copy.copy(spec)
            spec.entry_point = getattr(module, attribute)
        return spec


@dataclass(frozen=True)
class FromFactory:
    """A class or function given in Python that makes an environment."""

    factory: Callable[..., Any]

    @property
    def name(self) -> str:
        return re.sub(r"[^\w.]+", "", getattr(self.factory, "__qualname__", type(self.factory).__name__)) or "environment"

    @property
    def text(self) -> str:
        return self.name

    @property
    def how_to_limit(self) -> str:
        return "a function that puts gymnasium's TimeLimit around it"

    def make(self, options: JsonDict) -> Any:
        return _called(self.factory, options, self.name, inspect.getfile(self.factory) if inspect.isfunction(self.factory) else "")

    def settled(self, made: Any) -> FromFactory:
        return self

    def __getstate__(self) -> dict[str, object]:
        _refuse_from_script(self.factory)
        return dict(vars(self))


@dataclass(frozen=True)
class FromInstance:
    """An environment given in Python: made again from what it says of itself, or copied."""

    env: Any

    @property
    def name(self) -> str:
        return self.env.spec.id if self.env.spec is not None else type(self.env.unwrapped).__name__

    @property
    def text(self) -> str:
        return self.name

    @property
    def how_to_limit(self) -> str:
        return "gymnasium's TimeLimit around it"

    def make(self, options: JsonDict) -> Any:
        gymnasium = gymnasium_module()
        cure = f"Give a function that makes one: up.train(..., task=lambda: {type(self.env.unwrapped).__name__}(...))."
        if self.env.spec is not None:
            try:
                return gymnasium.make(copy.deepcopy(self.env.spec), **options)
            except Exception as error:  # a wrapper that does not record what it was made with
                raise TaskError(f"the environment {self.name} cannot be made a second time: {_told(error)}. {cure}") from error
        if options:
            raise TaskError(
                f"the environment {self.name} cannot be made with {as_arguments(options)}: it is a Python object. {cure}"
            )
        try:
            return copy.deepcopy(self.env)
        except Exception as error:
            raise TaskError(
                f"the environment {self.name} cannot be copied ({_told(error)}), and several are needed. {cure}"
            ) from error

    def settled(self, made: Any) -> FromInstance:
        return self

    def __getstate__(self) -> dict[str, object]:
        _refuse_from_script(type(self.env.unwrapped))
        return dict(vars(self))


# -- a user's file ---------------------------------------------------------------------------------------------------------


def beside_user(spec: str) -> str:
    """``gym:my_env:Track-v0`` as ``/here/my_env.py:Track-v0``, if that file is in the current folder and nothing else is meant.

    The command line does not look for modules in the current folder; and what is named by its file is kept with the run.
    """
    family, _, rest = spec.partition(":")
    module, colon, env_id = rest.partition(":")
    if family != "gym" or not colon or not module.isidentifier():
        return spec
    file = Path.cwd() / f"{module}.py"
    if not file.is_file() or _is_elsewhere(module, file):
        return spec
    if ":" in env_id:
        raise TaskError(
            f"{spec!r}: what is made from {file.name} takes no settings here. Write a function into the file that makes it with "
            f"them, def track(): ..., and give {file.name}:track."
        )
    return f"{file}:{env_id}"


def _is_elsewhere(module: str, file: Path) -> bool:
    """Whether the name means another module than this file."""
    try:
        found = importlib.machinery.PathFinder.find_spec(module)
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None and Path(found.origin).absolute() != file


def load_environments(file: str) -> Any:
    """The module of a user's file, and what it registered noted."""
    path = Path(file).expanduser()
    if "gymnasium" not in sys.modules and path.is_file() and b"gymnasium" in path.read_bytes():
        with contextlib.suppress(ImportError):  # the file will say so
            importlib.import_module("gymnasium")  # with its own environments, which are not the file's
    before = dict(sys.modules["gymnasium"].registry) if "gymnasium" in sys.modules else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Overriding environment")  # a run's own copy registers the same once more
        module = user_code.load_file(file)
    after = sys.modules["gymnasium"].registry if "gymnasium" in sys.modules else {}
    new = {env_id: spec for env_id, spec in after.items() if before.get(env_id) is not spec}
    _registered.setdefault(module.__name__, {}).update(new)
    return module


def is_environment(file: str, attribute: str) -> bool:
    """Whether a file has an environment under this name, rather than a text task or nothing. The file is run to find out."""
    return _in_module(load_environments(file), attribute) is not None


def environments_in(file: str) -> list[str]:
    """Names of the environments in a file, for a message."""
    module = load_environments(file)
    own = [name for name, value in vars(module).items() if _is_env_class(value) and value.__module__ == module.__name__]
    new = [env_id for env_id, spec in _registered[module.__name__].items() if "gymnasium" not in str(spec.entry_point)]
    return own + new


def _in_module(module: Any, attribute: str) -> Any:
    """An environment's class, a function, or what was registered under the name; nothing for anything else."""
    found = getattr(module, attribute, None)
    if _is_env_class(found) or inspect.isfunction(found):
        return found
    return _registered[module.__name__].get(attribute) if found is None else None


def _is_env_class(value: object) -> bool:
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(value, type) and issubclass(value, gymnasium.Env)


# -- Python objects --------------------------------------------------------------------------------------------------------


def source_of(value: object) -> EnvSource | None:
    """Where environments come from if this object is one, or makes one; nothing if it is neither.

    What a file defines at its top, and what gymnasium makes by name alone, is taken by name: a run can keep that.
    """
    if "gymnasium" in sys.modules and isinstance(value, sys.modules["gymnasium"].Env):
        return _known_to_gymnasium(value) or FromInstance(value)
    if not callable(value) or (isinstance(value, type) and not _is_env_class(value)):
        return None
    return _in_own_file(value) or FromFactory(value)


def name_in_run(source: EnvSource) -> str | None:
    """The name that brings a source back, if it has one."""
    return source.text if isinstance(source, InFile) else source.name if isinstance(source, ById) else None


def _known_to_gymnasium(env: Any) -> ById | None:
    """By id, where that alone makes the same: no settings, no wrappers of the user's."""
    try:
        spec = copy.deepcopy(env.spec)
    except Exception:  # of a wrapper; making it again will say so
        return None
    usual = None if spec is None else gymnasium_module().registry.get(spec.id)
    if usual is None or "gymnasium" not in str(usual.entry_point):
        return None
    spec.kwargs.pop("render_mode", None)
    same = all(getattr(spec, name) == getattr(usual, name) for name in ("kwargs", "max_episode_steps", "additional_wrappers"))
    return ById(spec.id) if same else None


def _in_own_file(value: Any) -> InFile | None:
    """A class or function by its file, where loading that anew finds it. A script is not loaded again: it would train again."""
    module = sys.modules.get(getattr(value, "__module__", ""))
    file, name = getattr(module, "__file__", None), getattr(value, "__qualname__", "")
    if module is None or file is None or "." in module.__name__ or module.__name__ == "__main__" or not file.endswith(".py"):
        return None
    if getattr(module, name, None) is not value or "site-packages" in Path(file).parts:
        return None
    try:
        return InFile(file, name) if is_environment(file, name) else None
    except UserError:  # it cannot be loaded by itself
        return None


def _refuse_from_script(kind: Any) -> None:
    if getattr(kind, "__module__", "") == "__main__":
        raise pickle.PicklingError(f"{getattr(kind, '__qualname__', kind)} is defined in the script that runs")


def _called(factory: Callable[..., Any], options: JsonDict, name: str, file: str) -> Any:
    """What a user's class or function gives, if it is an environment."""
    gymnasium = gymnasium_module()
    limit = options.get("max_episode_steps")
    given = {key: value for key, value in options.items() if key != "max_episode_steps"}
    try:
        inspect.signature(factory).bind(**given)
    except TypeError as error:
        missing = (
            "it cannot be shown. Give it an argument render_mode" if "render_mode" in given else "give it arguments of that name"
        )
        raise TaskError(f"{name} cannot be made with {as_arguments(given) or 'no arguments'}: {error}; {missing}.") from error
    except ValueError:  # a signature that cannot be read
        pass
    try:
        made = factory(**given)
    except (Exception, SystemExit) as error:
        raise TaskError(f"{name} could not be made: {user_code.in_words(error, file or name)}.") from error
    if not isinstance(made, gymnasium.Env):
        raise TaskError(f"{name} gave {shown(made)}, which is no gymnasium.Env. Return an environment.")
    return made if limit is None else gymnasium.wrappers.TimeLimit(made, limit)


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":").removesuffix(".")
