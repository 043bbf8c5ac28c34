"""Code that a run would execute if it were resumed: named with its digests, shown as text, never run or imported here.

Whether it may run is for `upslope.runtime.trust` to say. A run's folder may be anybody's, so that is asked of a copy of its
``code`` folder, read without following links and only so far.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from upslope.board import safe_files
from upslope.board.plan_view import read_whole_plan
from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.runtime import trust

MOST_BYTES = 64 * safe_files.MIB
MOST_FILES = 2000
MOST_NAME = 500
DEPTH = 12
SHOWN_FILES, SHOWN_CHARACTERS = 50, 60_000
"""Of the sources that the page shows: how many, and how much of each."""


class NeedsTrust(Exception):
    """Code that this machine did not write, and that nobody has agreed to run."""

    def __init__(self, said: str, code: list[JsonDict]):
        super().__init__(said)
        self.code = code


@dataclass(frozen=True)
class RunCode:
    """What a run would execute.

    Fields:
        needed: by digest, which file or module that is.
        sources: the files of its ``code`` folder, by path in it.
    """

    needed: dict[str, str]
    sources: dict[str, bytes]

    def untrusted(self) -> list[str]:
        """Digests of what may not run yet."""
        return sorted(set(self.needed) - trust.trusted())

    def shown(self, digests: list[str]) -> list[JsonDict]:
        """What a person needs to decide on these."""
        return [{"digest": each, "what": self.needed[each], "files": self._files(self.needed[each])} for each in digests]

    def _files(self, what: str) -> list[JsonDict]:
        if what not in self.sources:
            return []  # a module of an installed package: there is nothing of it in the folder
        # A bundle is a folder with all that belongs to it; files from before there were bundles lie side by side.
        folder = what.rpartition("/")[0]
        names = [name for name in self.sources if name.startswith(f"{folder}/")] if folder else list(self.sources)
        names.sort(key=lambda name: (name != what, name))
        return [_shown_file(name, self.sources[name]) for name in names[:SHOWN_FILES]] + [
            {"name": name, "bytes": len(self.sources[name]), "text": None, "cut": True} for name in names[SHOWN_FILES:]
        ]


def _shown_file(name: str, content: bytes) -> JsonDict:
    text = None if b"\0" in content else content.decode("utf-8", "replace")
    cut = text is None or len(text) > SHOWN_CHARACTERS
    return {"name": name, "bytes": len(content), "text": text and text[:SHOWN_CHARACTERS], "cut": cut}


def read_run_code(root: Path, parts: tuple[str, ...]) -> RunCode:
    """The code of a run.

    Raises:
        UserError: if its ``run.toml`` or ``code`` is nothing that a run writes.
    """
    try:
        table = read_whole_plan(root, parts)
        sources = _sources(root, parts)
        with tempfile.TemporaryDirectory(prefix="upslope-board-") as copy:
            for name, content in sources.items():
                target = Path(copy, "code", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            try:
                found = trust.code_of(table, Path(copy, "code"))
            except UserError as problem:
                raise UserError(str(problem).replace(copy, str(root.joinpath(*parts)))) from None
            prefix = f"{Path(copy, 'code')}{os.sep}"
            return RunCode({digest: what.removeprefix(prefix)[:MOST_NAME] for digest, what in found.items()}, sources)
    except (OSError, ValueError, safe_files.TooLarge) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UserError(f"{'/'.join(parts)} cannot be resumed: {reason.rstrip('.')}.") from None
    except (RecursionError, MemoryError):
        raise UserError(f"{'/'.join(parts)} cannot be resumed: its run.toml or code is nested too deep to be read.") from None


def _sources(root: Path, parts: tuple[str, ...]) -> dict[str, bytes]:
    """All files below ``code``; a link, a device, or more than a run would keep is an error."""
    try:
        with safe_files.folder(root, *parts) as at:
            os.stat("code", dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return {}
    found: dict[str, bytes] = {}
    left = MOST_BYTES
    with safe_files.folder(root, *parts, "code") as at:
        for name, content in _below(at, "", left, DEPTH):
            left -= len(content)
            found[name] = content
            if left < 0 or len(found) > MOST_FILES:
                raise safe_files.TooLarge(f"its code has more than {MOST_FILES:,} files or {MOST_BYTES >> 20} MiB.")
    return found


def _below(at: int, above: str, most: int, depth: int) -> Iterator[tuple[str, bytes]]:
    if not depth:
        raise safe_files.TooLarge("folders in its code lie too deep.")
    for name in sorted(os.listdir(at)):
        kind = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
        if stat.S_ISREG(kind):
            yield above + name, safe_files.read(at, name, most)
        elif stat.S_ISDIR(kind):
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            try:
                yield from _below(inner, f"{above}{name}/", most, depth - 1)
            finally:
                os.close(inner)
        else:
            raise OSError(f"its code holds {above + name!r}, a link or no plain file, which no run has made")
