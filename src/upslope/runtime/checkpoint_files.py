"""The files of a checkpoint with their digests: taken of the bytes as they are written, compared with those that are read.

``digests.json`` beside the files holds size and SHA-256 of each. Folders from before there were digests have none; they are read
and said to be unverified.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from torch import Tensor

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.runtime.staging import Sink
from upslope.runtime.tensor_files import read_tensors, write_tensors

DIGESTS = "digests.json"
CHUNK = 1 << 20
MOST_WAITING = 8
MANY = 1 << 22
"""Bytes at once from which on a second thread pays."""
Found = TypeVar("Found")


class Damaged(UserError):
    """A file of a checkpoint that is missing, or not what was written."""


class Hashing:
    """SHA-256 of bytes that are handed over one after the other, taken beside the writing of them where they are many.

    What is handed over must stay as it is until what `update` gives back is done, or the block ends.
    """

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.thread: ThreadPoolExecutor | None = None
        self.waiting: list[Future[None]] = []

    def __enter__(self) -> Hashing:
        return self

    def __exit__(self, *problem: object) -> None:
        if self.thread is not None:
            self.thread.shutdown()
            for each in self.waiting:
                each.result()

    def update(self, data: Any) -> Future[None] | None:
        """None where it is done."""
        if self.thread is None and len(data) >= MANY:
            self.thread = ThreadPoolExecutor(1, thread_name_prefix="digest")
        if self.thread is None:
            self.digest.update(data)
            return None
        self.waiting.append(self.thread.submit(self.digest.update, data))
        if len(self.waiting) > MOST_WAITING:  # what waits is held in memory
            self.waiting.pop(0).result()
        return self.waiting[-1]

    def hexdigest(self) -> str:
        return self.digest.hexdigest()


class CheckpointWriter:
    """Writes the files of a folder and remembers their digests; `close` writes those. Use it in a ``with`` block."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.digests: dict[str, JsonDict] = {}

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: object, *problem: object) -> None:
        if kind is None:
            self.close()

    def write(self, name: str, data: bytes) -> None:
        """A small file."""
        with self._open(name) as write:
            write(data)

    def write_json(self, name: str, value: object) -> None:
        self.write(name, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
        """Tensors by name, as a safetensors file."""
        with self._open(name) as write:
            write_tensors(write, tensors, metadata)

    def copy(self, file: Path, name: str) -> None:
        """A file that somebody else made."""
        with self._open(name) as write, file.open("rb") as source:
            while data := source.read(CHUNK):
                write(data)

    def link(self, file: Path, name: str, digest: JsonDict | None = None) -> None:
        """A file that lies elsewhere and stays as it is: it takes no room of its own where the file system can do that.

        Args:
            digest: of the file, where it is known.
        """
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file.resolve(), target)
        except OSError:  # another disk, or a file system without links
            self.copy(file, name)
            return
        self.digests[name] = digest or _digest_of(file)

    def link_folder(self, folder: Path) -> None:
        """All files of a folder that a `CheckpointWriter` filled."""
        for name, digest in (CheckpointReader(folder, demand=True).digests or {}).items():
            self.link(folder / name, name, digest)

    def close(self) -> None:
        """Writes the digests: a folder without them is not finished."""
        with self._open(DIGESTS) as write:
            write((json.dumps(self.digests, indent=1, sort_keys=True) + "\n").encode())

    @contextmanager
    def _open(self, name: str) -> Iterator[Sink]:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size = 0
        with path.open("wb") as file, Hashing() as digest:

            def write(data: Any) -> Future[None] | None:
                nonlocal size
                read = digest.update(data)
                file.write(data)
                size += len(data)
                return read

            yield write
            file.flush()
            os.fsync(file.fileno())
        self.digests[name] = {"sha256": digest.hexdigest(), "bytes": size}


class CheckpointReader:
    """Reads the files of a folder and holds each against its digest.

    Args:
        folder: What a `CheckpointWriter` filled, or a folder from before there were digests.
        demand: Whether digests must be there.
    """

    def __init__(self, folder: str | Path, demand: bool = False):
        self.folder = Path(folder)
        self.read_digests: dict[str, str] = {}
        """SHA-256 of every file that was read."""
        self.digests = self._known(demand)

    @property
    def verified(self) -> bool:
        """Whether there are digests to compare with."""
        return self.digests is not None

    def __contains__(self, name: str) -> bool:
        return (self.folder / name).is_file() or name in (self.digests or {})

    def names(self) -> list[str]:
        """The files that were written."""
        if self.digests is not None:
            return sorted(self.digests)
        return sorted(file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*") if file.is_file())

    def read(self, name: str) -> bytes:
        """A small file."""
        return self._read(name, self._whole)

    def read_json(self, name: str) -> Any:
        data = self.read(name)
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as problem:
            raise Damaged(f"{self.folder / name} is damaged: it is not JSON ({problem}).") from None

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of a safetensors file."""
        return self._read(name, read_tensors)

    def check(self, name: str) -> None:
        """Reads a file for its digest alone."""
        self._read(name, self._skim)

    def _read(self, name: str, take: Callable[[BinaryIO, Callable[[Any], None]], Found]) -> Found:
        path, digest, size, problem = self.folder / name, hashlib.sha256(), 0, ""
        found: Found | None = None

        def seen(data: Any) -> None:
            nonlocal size
            digest.update(data)
            size += len(data)

        try:
            with path.open("rb") as file:
                try:
                    found = take(file, seen)
                except ValueError as wrong:
                    problem = str(wrong)
        except FileNotFoundError:
            raise Damaged(f"{path} is missing.") from None
        except OSError as failure:
            raise Damaged(f"{path} cannot be read: {failure.strerror}.") from None
        self.read_digests[name] = digest.hexdigest()
        known = None if self.digests is None else self.digests.get(name)
        if self.digests is not None and known is None:
            raise Damaged(f"{path} is not one of the files that {DIGESTS} names.")
        if known is not None and not problem and known != {"sha256": digest.hexdigest(), "bytes": size}:
            problem = f"it has {size:,} bytes of {known.get('bytes'):,}" if known.get("bytes") != size else "its digest is another"
        if problem:
            raise Damaged(f"{path} is damaged: {problem}.")
        return found  # type: ignore[return-value]

    @staticmethod
    def _whole(file: BinaryIO, seen: Callable[[Any], None]) -> bytes:
        data = file.read()
        seen(data)
        return data

    @staticmethod
    def _skim(file: BinaryIO, seen: Callable[[Any], None]) -> None:
        while data := file.read(CHUNK):
            seen(data)

    def _known(self, demand: bool) -> dict[str, JsonDict] | None:
        path = self.folder / DIGESTS
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            if demand:
                raise Damaged(f"{self.folder} has no {DIGESTS}, with which every checkpoint of this run was written.") from None
            return None
        except (OSError, ValueError, RecursionError) as problem:
            raise Damaged(f"{path} is damaged: {problem}.") from None
        entries = found.values() if isinstance(found, dict) else [None]
        if not all(isinstance(entry, dict) and isinstance(entry.get("bytes"), int) for entry in entries):
            raise Damaged(f"{path} is damaged: it does not name files and their digests.")
        return found


def _digest_of(path: Path) -> JsonDict:
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}


@contextmanager
def saving(folder: str | Path | CheckpointWriter) -> Iterator[CheckpointWriter]:
    """Where to write: a checkpoint under way; or a folder of the user's, in which each file is replaced whole and others stay."""
    if isinstance(folder, CheckpointWriter):
        yield folder
        return
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as unfinished:
        files = CheckpointWriter(unfinished)
        yield files
        (folder / DIGESTS).unlink(missing_ok=True)  # of what was there before
        for name in files.digests:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (files.folder / name).replace(target)


def as_reader(folder: str | Path | CheckpointReader) -> CheckpointReader:
    """The folder's reader."""
    return folder if isinstance(folder, CheckpointReader) else CheckpointReader(folder)
