"""Data files of a run: small ones are copied below its folder, so that it works from anywhere and outlives a change of theirs."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from upslope.errors import UserError
from upslope.runtime.python_objects import IN_RUN

LARGEST_COPY = 64 * 2**20
"""Bytes of a file or folder that is copied. It is little beside one checkpoint of a small language model, and most people's
problems fit; whoever trains on more has one place for it and would not want it in every run."""
FOLDER = "data"


@dataclass(frozen=True)
class DataFiles:
    """A file of data, or a folder of them, as a run refers to it."""

    source: Path
    """Where it is, absolute."""
    name: str
    """What ``run.toml`` calls it: ``{run}/data/problems.jsonl`` if it is copied, else its absolute path."""
    digests: dict[str, str]
    """Of each file, by its name in ``run.toml``."""

    @classmethod
    def at(cls, path: str, prefix: str = "") -> DataFiles:
        """What a path leads to.

        Args:
            prefix: before its name in the run's folder, where another one has that name already.
        """
        source = Path(path).expanduser().absolute()
        files = sorted(file for file in source.rglob("*") if file.is_file()) if source.is_dir() else [source]
        small = sum(file.stat().st_size for file in files if file.is_file()) <= LARGEST_COPY
        name = f"{IN_RUN}/{FOLDER}/{prefix}{source.name}" if small else str(source)
        return cls(source, name, {_below(name, file, source): file_digest(file) for file in files})

    @property
    def copied(self) -> bool:
        return self.name.startswith(f"{IN_RUN}/")

    def keep(self, folder: Path) -> None:
        """Copies it below the run's folder, if it is to be copied.

        Raises:
            UserError: if what is copied is not what was read.
        """
        if not self.copied:
            return
        for name, digest in self.digests.items():
            target = folder / name.removeprefix(f"{IN_RUN}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            source = self.source / target.relative_to(folder / self.name.removeprefix(f"{IN_RUN}/"))
            shutil.copyfile(source, target)
            if file_digest(target) != digest:
                raise UserError(f"{source} changed while the run began. Start it again when nobody writes to that file.")


def shown_name(name: str) -> str:
    """A name in ``run.toml`` for people: of a copy the name of the file, in a mixture of tasks too."""
    return name.replace(f"{IN_RUN}/{FOLDER}/", "")


def file_digest(path: Path) -> str:
    """Of a file's bytes, in pieces: it may be larger than memory. Empty where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _below(name: str, file: Path, source: Path) -> str:
    return name if file == source else f"{name}/{file.relative_to(source)}"
