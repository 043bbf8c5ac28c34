"""A Python file and what it imports from its own folder: found without running it, kept whole, imported only from its source."""

from __future__ import annotations

import ast
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from upslope.errors import UserError

MOST_BYTES = 64 * 2**20
SKIPPED = ("__pycache__", ".git")


@dataclass(frozen=True, eq=False)
class Bundle:
    """A file with its neighbours.

    Fields:
        root: the folder.
        entry: the file's name in it.
        files: what belongs to it, by path below the root, with the content.
    """

    root: Path
    entry: str
    files: dict[str, bytes] = field(repr=False)

    @classmethod
    def around(cls, path: Path) -> Bundle:
        """The file and all that it imports from beside it."""
        root, files = path.absolute().parent, {path.name: path.read_bytes()}
        waiting = [path.name]
        while waiting:
            name = waiting.pop()
            for module in _imported(files[name]) if name.endswith(".py") else ():
                for found in _beside(root, module):
                    if found not in files:
                        files[found] = (root / found).read_bytes()
                        waiting.append(found)
                        _check_size(root, files)
        return cls(root, path.name, files)

    @classmethod
    def kept(cls, folder: Path, entry: str) -> Bundle:
        """All files of a bundle's own folder."""
        if any(path.is_symlink() for path in (folder.parent, folder, *folder.rglob("*"))):
            raise UserError(f"{folder} is or holds a link, which no run has made; it is not run.")
        if sum((folder / name).stat().st_size for name in _files_below(folder)) > MOST_BYTES:
            raise UserError(f"{folder} has more than {MOST_BYTES >> 20} MiB, which no run keeps; it is not run.")
        return cls(folder, entry, {name: (folder / name).read_bytes() for name in _files_below(folder)})

    @property
    def digest(self) -> str:
        return digest_of(self.files)

    @property
    def folder_name(self) -> str:
        return f"{Path(self.entry).stem}-{self.digest[:8]}"

    def neighbours(self) -> dict[str, bytes]:
        """By the name they are imported under, what stands behind it; the file itself is imported by no name."""
        found: dict[str, dict[str, bytes]] = {}
        for path, content in self.files.items():
            if path != self.entry:
                found.setdefault(path.partition("/")[0].partition(".")[0], {})[path] = content
        return {name: digest_of(files).encode() for name, files in found.items()}

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def digest_of(files: dict[str, bytes]) -> str:
    """Of one file its SHA-256, of several that of their names and theirs."""
    if len(files) == 1:
        return hashlib.sha256(next(iter(files.values()))).hexdigest()
    each = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return hashlib.sha256(each.encode("utf-8", "surrogateescape")).hexdigest()


def _imported(source: bytes) -> Iterator[str]:
    """Names of the modules a source imports, wherever it does; of a package the first name."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # loading it will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value.partition(".")[0]


def _beside(root: Path, module: str) -> list[str]:
    """The files a module name means in this folder; none if it is Python's own or comes from elsewhere."""
    if not module.isidentifier() or module in sys.stdlib_module_names:
        return []
    suffixes = (*importlib.machinery.EXTENSION_SUFFIXES, ".py")
    if (root / module).is_dir():
        files = [f"{module}/{name}" for name in _files_below(root / module)]
        regular = any((root / module / f"__init__{suffix}").is_file() for suffix in suffixes)
        # A folder without __init__.py is a package only where nothing else has that name.
        if regular or (any(name.endswith(".py") for name in files) and not _installed(module)):
            return files
    return [f"{module}{suffix}" for suffix in suffixes if (root / f"{module}{suffix}").is_file()][:1]


def _installed(module: str) -> bool:
    if module in sys.modules:
        return not _is_neighbour(sys.modules[module])
    try:
        found = importlib.machinery.PathFinder.find_spec(module)
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None


def _files_below(folder: Path) -> list[str]:
    found = (file for file in folder.rglob("*") if file.is_file() and not any(part in SKIPPED for part in file.parts))
    return sorted(file.relative_to(folder).as_posix() for file in found if not file.name.endswith(".pyc"))


def _check_size(root: Path, files: dict[str, bytes]) -> None:
    if sum(map(len, files.values())) > MOST_BYTES:
        largest = max(files, key=lambda name: len(files[name]))
        raise UserError(
            f"what is imported from {root} has more than {MOST_BYTES >> 20} MiB (the largest is {largest}), which a run would keep "
            "with it. Move data out of the package."
        )


# -- importing -------------------------------------------------------------------------------------------------------------


class _FromBundle(importlib.machinery.SourceFileLoader):
    """Runs the very bytes that the digest is of.

    Never what lies in the file by now, nor a compiled copy beside it: a stranger's could hold anything.
    """

    bundle: Bundle

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        name = Path(path).relative_to(self.bundle.root).as_posix()
        if name not in self.bundle.files:
            raise ImportError(f"{path} was not there when the code was loaded", name=fullname)
        return self.source_to_code(self.bundle.files[name], path)


class NeighbourFinder(importlib.abc.MetaPathFinder):
    """Finds a bundle's neighbours, and nothing else, also for imports that happen late, inside of functions."""

    def __init__(self, bundle: Bundle):
        self.root, self.names = bundle.root, frozenset(bundle.neighbours())
        loader = type("_FromThisBundle", (_FromBundle,), {"bundle": bundle})
        self.loaders: list[tuple[Any, list[str]]] = [
            (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
            (loader, importlib.machinery.SOURCE_SUFFIXES),
        ]

    @classmethod
    def install(cls, bundle: Bundle) -> None:
        """From here on the bundle's names mean its own modules; what another bundle had under them is forgotten."""
        finder = cls(bundle)
        if not finder.names:
            return
        for name in list(sys.modules):
            if name.partition(".")[0] in finder.names and _is_neighbour(sys.modules[name]):
                del sys.modules[name]
        sys.meta_path.insert(0, finder)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] not in self.names:
            return None
        for folder in path if path is not None else [str(self.root)]:
            found = importlib.machinery.FileFinder(str(folder), *self.loaders).find_spec(fullname, target)
            if found is not None:
                return found
        return None


def _is_neighbour(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and any(
        isinstance(each, NeighbourFinder) and Path(file).is_relative_to(each.root) for each in sys.meta_path
    )
