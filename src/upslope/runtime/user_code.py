"""A user's own Python file: loaded under a name of its own, remembered with a hash, copied into the run that uses it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from upslope.errors import UserError

_PREFIX = "upslope_user_"


def load_file(path: str | Path) -> ModuleType:
    """The module in this file. The same content gives the same module, so that its classes stay equal to themselves."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no file {str(path)!r}. Give the path of a Python file, as in my_method.py or my_reward.py:score.")
    name = f"{_PREFIX}{path.stem}_{_digest(path)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while the class is made
    folder = str(path.absolute().parent)
    sys.path.insert(0, folder)  # as for a script, so that it can import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{str(path)!r} cannot be loaded: {in_words(error, path)}.") from error
    finally:
        sys.path.remove(folder)
    return module


def in_words(error: Exception, source: str | Path) -> str:
    """The error with the last line of the user's file it passed through."""
    name = Path(source).name
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == name]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}" if str(error) else f"{type(error).__name__}{where}"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def is_user_module(name: str) -> bool:
    """Whether a module of this name came from `load_file`."""
    return name.startswith(_PREFIX)


def source_of(module_name: str) -> Path:
    """The file a module was loaded from."""
    return Path(str(sys.modules[module_name].__file__))


def reference(module_name: str, attribute: str) -> str:
    """``file.py:name@hash`` of something in a user's file, as it stands in ``run.toml``."""
    return f"{source_of(module_name).name}:{attribute}@{module_name.rsplit('_', 1)[1]}"


def resolve(text: str, folder: Path) -> object:
    """What `reference` named, from the copy in ``folder``; a file that has changed since is refused."""
    where, _, digest = text.partition("@")
    file, _, attribute = where.partition(":")
    path = folder / file
    if digest and path.is_file() and _digest(path) != digest:  # before anything in it is run
        raise UserError(f"{path} is not the file this run was started with (its hash is not {digest}).")
    module = load_file(path)
    if not hasattr(module, attribute):
        raise UserError(f"{folder / file} defines no {attribute!r}.")
    return getattr(module, attribute)
