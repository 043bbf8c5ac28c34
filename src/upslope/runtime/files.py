"""Files that are written whole or not at all, and tensors and numbers in them without pickle."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor


def write_text(path: Path, text: str) -> None:
    """Writes a text file so that a reader sees the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that appears under its name only when the block ends without an error."""
    draft = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    yield draft
    for file in sorted(draft.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    if path.exists():
        shutil.rmtree(path)
    draft.replace(path)


def save_state(folder: Path, name: str, state: Any) -> None:
    """A nested dict or list of tensors, numbers, text and None as ``name.json``, its tensors in ``name.safetensors``."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            tensors[path] = value.detach().cpu().contiguous().clone()
            return {"__tensor__": path}
        if isinstance(value, dict):
            return {str(key): plain(item, f"{path}/{key}") for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item, f"{path}/{position}") for position, item in enumerate(value)]
        return value

    write_json(folder / f"{name}.json", plain(state, name))
    if tensors:
        save_file(tensors, folder / f"{name}.safetensors")


def load_state(folder: Path, name: str) -> Any:
    """What `save_state` wrote."""
    from safetensors.torch import load_file

    file = folder / f"{name}.safetensors"
    tensors = load_file(file) if file.exists() else {}

    def rebuilt(value: Any) -> Any:
        if isinstance(value, dict):
            if "__tensor__" in value:
                return tensors[value["__tensor__"]]
            return {key: rebuilt(item) for key, item in value.items()}
        return [rebuilt(item) for item in value] if isinstance(value, list) else value

    return rebuilt(json.loads((folder / f"{name}.json").read_text()))
