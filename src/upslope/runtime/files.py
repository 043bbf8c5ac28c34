"""Files that are written whole or not at all, and tensors and numbers in them without pickle."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, Damaged, as_reader
from upslope.runtime.nested_tensors import put_together, taken_apart


def write_text(path: Path, text: str) -> None:
    """Writes a text file so that a reader sees the old one or the new one, never half of it."""
    write_bytes(path, text.encode("utf-8", "surrogatepass"))


def write_bytes(path: Path, data: bytes) -> None:
    """The same for bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


@contextmanager
def whole_folder(path: Path) -> Iterator[CheckpointWriter]:
    """A folder to fill that appears under its name, with the digests of its files, only when the block ends without an error."""
    draft = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        with CheckpointWriter(draft) as files:
            yield files
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _to_disk(draft)
    if path.exists():
        shutil.rmtree(path)
    draft.replace(path)
    _to_disk(path.parent)


def _to_disk(folder: Path) -> None:
    """Makes names in a folder outlast a power cut, where the file system knows how."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def save_state(folder: Path | CheckpointWriter, name: str, state: object) -> None:
    """A nested dict or list of tensors, numbers, text and None as ``name.json``, its tensors in ``name.safetensors``."""
    files = CheckpointWriter(folder) if isinstance(folder, Path) else folder
    tensors: dict[str, Tensor] = {}
    files.write_json(f"{name}.json", taken_apart(state, name, tensors))
    if tensors:
        files.write_tensors(f"{name}.safetensors", tensors)


def load_state(folder: Path | CheckpointReader, name: str) -> Any:
    """What `save_state` wrote.

    Raises:
        Damaged: if it is not what was written.
    """
    files, packed = as_reader(folder), f"{name}.safetensors"
    plain = files.read_json(f"{name}.json")
    tensors = files.read_tensors(packed) if packed in files else {}
    try:
        return put_together(plain, tensors)
    except KeyError as missing:
        raise Damaged(f"{files.folder / packed} is damaged: it has no {missing}.") from None
