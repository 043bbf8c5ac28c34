"""A user's own Python file: loaded under a name of its own with what it imports from beside it, and kept with the run that uses it.

What is kept is a *bundle*: the file, and every module and package in its folder that it imports, directly or not. A bundle is named
by the digest of all of it. In a run it stands as ``code/<name>-<digest>/``, and ``run.toml`` names things in it by
``<name>-<digest>/file.py:thing@<digest>``, or ``file.py:neighbour.thing`` for what a file beside it defines.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from upslope.errors import UserError
from upslope.runtime.code_bundle import Bundle, NeighbourFinder, digest_of

MODULE_PREFIX = "upslope_user_"
"""How the names of modules begin that are users' own files."""
SHOWN = 16
"""Digits of a digest that ``run.toml`` has; what may run is decided by all of them."""
_bundles: dict[str, Bundle] = {}
"""By module: what was loaded."""
_neighbours: dict[tuple[str, str], ModuleType] = {}
"""By the digest of a bundle and the name: the modules beside the file that were imported with it."""


def load_file(path: str | Path) -> ModuleType:
    """The module in this file. The same content gives the same module, so that its classes stay equal to themselves."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"no file {str(path)!r}. Give the path of a Python file, as in my_method.py or my_reward.py:score.")
    bundle = Bundle.around(path)
    name = f"{MODULE_PREFIX}{path.stem}_{bundle.digest[:SHOWN]}"
    if name in sys.modules:
        return sys.modules[name]
    NeighbourFinder.install(bundle)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while the class is made
    try:
        # The very bytes that the digest is of, never a compiled copy that lies beside them.
        exec(compile(bundle.files[bundle.entry], str(module.__file__), "exec"), module.__dict__)
    except KeyboardInterrupt:
        del sys.modules[name]
        raise
    except BaseException as error:  # a file that calls sys.exit() too
        del sys.modules[name]
        raise UserError(f"{str(path)!r} cannot be loaded: {in_words(error, path)}.") from error
    _bundles[name] = bundle
    beside = bundle.neighbours()
    for other, imported in list(sys.modules.items()):
        if other.partition(".")[0] in beside and Path(getattr(imported, "__file__", None) or "/").is_relative_to(bundle.root):
            _neighbours[bundle.digest, other] = imported
    return module


def in_words(error: BaseException, source: str | Path) -> str:
    """The error with the last line of the user's file it passed through."""
    name = Path(source).name
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == name]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{where}" if str(error) else f"{type(error).__name__}{where}"


def bundle_of(module_name: str) -> Bundle:
    """What a module was loaded from."""
    return _bundles[module_name]


def reference(module_name: str, attribute: str) -> str:
    """Something in a user's file as ``run.toml`` names it."""
    return _reference(_bundles[module_name], attribute)


def _reference(bundle: Bundle, attribute: str) -> str:
    return f"{bundle.folder_name}/{bundle.entry}:{attribute}@{bundle.digest[:SHOWN]}"


def defined_in(kind: type) -> tuple[Bundle, str] | None:
    """The bundle that defines a class, and how ``run.toml`` names the class; nothing if no user's file does, nor one beside it."""
    if kind.__module__ in _bundles:
        return _bundles[kind.__module__], reference(kind.__module__, kind.__name__)
    for bundle in reversed(_bundles.values()):
        beside = _neighbours.get((bundle.digest, kind.__module__))
        if beside is not None and getattr(beside, kind.__name__, None) is kind:
            return bundle, _reference(bundle, f"{kind.__module__}.{kind.__name__}")
    return None


def attribute_of(kind: type) -> object:
    """What is found under a class's name in the module that defines it."""
    found = defined_in(kind)
    beside = None if found is None else _neighbours.get((found[0].digest, kind.__module__))
    return getattr(beside or sys.modules.get(kind.__module__), kind.__name__, None)


def check_bundles_agree(bundles: set[Bundle]) -> None:
    """Refuses two files of one run that import different modules under one name: a late import could only find one of them."""
    seen: dict[str, tuple[bytes, Bundle]] = {}
    for bundle in sorted(bundles, key=lambda each: each.folder_name):
        for name, content in bundle.neighbours().items():
            other = seen.setdefault(name, (content, bundle))
            if other[0] != content:
                raise UserError(
                    f"{other[1].root / other[1].entry} and {bundle.root / bundle.entry} import different modules {name!r} from "
                    "beside them. Rename one of the two."
                )


def keep(bundles: set[Bundle], code: Path) -> None:
    """Copies bundles into a run's ``code`` folder."""
    for bundle in bundles:
        bundle.write(code / bundle.folder_name)


def locate(text: str, code: Path) -> tuple[Path, str, Bundle]:
    """The file and the name in it that a reference means, and all that would run with it.

    It must lie in the run's ``code`` folder and be what its digest says.

    Raises:
        UserError: for any other file, one that has changed, or a reference without a digest. Nothing has been run by then.
    """
    where, _, digest = text.rpartition("@")
    file, _, attribute = where.rpartition(":")
    if not digest or not file or not attribute:
        raise UserError(f"{text!r} in run.toml does not name code with its digest, so it is not run.")
    place = Path(file)
    if place.is_absolute() or ".." in place.parts or len(place.parts) > 2:
        raise UserError(f"{text!r} in run.toml means a file outside of the run's own code; it is not run.")
    path = code / place
    if code.is_symlink() or path.is_symlink():
        raise UserError(f"{path} is a link, which no run has made; it is not run.")
    if not path.is_file():
        raise UserError(f"{path} is missing: the run kept it when it began. Put it back to go on.")
    if len(place.parts) == 2:
        bundle = Bundle.kept(path.parent, place.name)
        found = bundle.digest
    else:  # runs from before there were bundles have single files, and the digest was of that file alone
        bundle, found = Bundle.around(path), digest_of({place.name: path.read_bytes()})
    if found[:SHOWN] != digest:
        what = f"{path.parent} (some file in it)" if len(place.parts) == 2 else str(path)
        raise UserError(f"{what} is not the code this run was started with (its hash is not {digest}).")
    return path, attribute, bundle


def resolve(text: str, code: Path) -> object:
    """What a reference means. This runs the file: whoever calls it has asked `upslope.runtime.trust` first."""
    path, attribute, bundle = locate(text, code)
    module = load_file(path)
    beside, _, name = attribute.rpartition(".")
    if beside:  # only what loading the file has imported from beside it: a name in a file imports nothing
        return getattr(_neighbours.get((bundle.digest, beside)), name, None)
    if not hasattr(module, attribute):
        raise UserError(f"{path} defines no {attribute!r}.")
    return getattr(module, attribute)
