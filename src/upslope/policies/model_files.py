"""Model files: a `transformers` model and its tokenizer to and from the files of a checkpoint, every byte under a digest."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from upslope.errors import UserError
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, Damaged
from upslope.runtime.tensor_files import read_header

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Shard = tuple[str, dict[str, Tensor], Mapping[str, str] | None]
"""A file's name, tensors and metadata."""


class ModelFiles:
    """What ``save_pretrained`` writes of a model and its tokenizer: worked out once, since only the numbers change."""

    def __init__(self) -> None:
        self._small: dict[str, bytes] = {}
        self._shards: list[Shard] = []

    def save(self, model: Any, tokenizer: Any, files: CheckpointWriter, weights: Mapping[str, Tensor] | None = None) -> None:
        """Writes them.

        Args:
            weights: in place of the model's own.
        """
        shards = self._shards if weights is None and self._current(model) else self._look(model, tokenizer, weights)
        for name, tensors, metadata in shards:
            files.write_tensors(name, tensors, metadata)
        for name, data in self._small.items():
            files.write(name, data)

    def link(
        self, model: Any, tokenizer: Any, files: CheckpointWriter, source: Path, weights: Mapping[str, Tensor] | None = None
    ) -> bool:
        """The same of a model whose weights are those in ``source``, which are linked; False, and nothing, where that cannot be.

        A file in half precision will do: read into float32 it gives the very numbers.

        Args:
            weights: the model's own by other names than it has them.
        """
        held = [source / name for name in weight_files(source)]
        if not held or any(_names(file) is None for file in held):
            return False
        state: Mapping[str, Tensor] = model.state_dict() if weights is None else weights
        named = {name for file in held for name in _names(file) or ()}
        if named - set(state) or any(not named & set(tied) for tied in _tied(state).values()):
            return False  # it has them under other names
        self._look(model, tokenizer, weights)
        index = [source / INDEX] if (source / INDEX).is_file() else []
        for file in (*held, *index):
            files.link(file, file.name)
        for name, data in self._small.items():
            if name != INDEX:
                files.write(name, data)
        return True

    def shards(self, model: Any, tokenizer: Any, weights: Mapping[str, Tensor] | None = None) -> list[Shard]:
        """The tensors themselves as the files would have them, by file."""
        return self._look(model, tokenizer, weights)

    def _look(self, model: Any, tokenizer: Any, weights: Mapping[str, Tensor] | None) -> list[Shard]:
        shards: list[Shard] = []
        with tempfile.TemporaryDirectory(prefix="upslope-") as described:
            with quiet_loading(), _weights_to(shards, described):
                model.save_pretrained(described, state_dict=None if weights is None else dict(weights))
            if weights is None or not self._small:
                tokenizer.save_pretrained(described)
                found = sorted(path for path in Path(described).rglob("*") if path.is_file())
                self._small = {file.relative_to(described).as_posix(): file.read_bytes() for file in found}
        if weights is None:
            self._shards = shards
        return shards

    def _current(self, model: Any) -> bool:
        """Whether the tensors that were handed on are the model's own still."""
        if not self._shards:
            return False
        own = {tensor.data_ptr() for tensor in model.state_dict().values()}
        return all(tensor.data_ptr() in own for _, tensors, _ in self._shards for tensor in tensors.values())


def weight_files(folder: Path) -> list[str]:
    """The files of a model folder that hold its weights; none where they are not as they are read here."""
    if not (folder / INDEX).is_file():
        return [WEIGHTS] if (folder / WEIGHTS).is_file() else []
    try:
        return sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def holds_weights(folder: Path, model: Any) -> bool:
    """Whether the files of a folder hold this model's weights to the last bit, all of them and under its own names."""
    state, files = model.state_dict(), weight_files(folder)
    if not files or any(set(_names(folder / file) or {""}) - set(state) for file in files):
        return False
    for file in files:
        with safe_open(folder / file, framework="pt") as held:
            for name in held.keys():  # noqa: SIM118 (it is no mapping)
                if not torch.equal(held.get_tensor(name).float(), state[name].detach().cpu().float()):
                    return False
    return True


def _names(file: Path) -> set[str] | None:
    """The tensors a file holds; None where reading them into float32 would not give the same numbers, or they cannot be read."""
    try:
        header = read_header(file)
    except (OSError, ValueError):
        return None
    exact = all(dtype in (torch.float32, torch.bfloat16, torch.float16) for dtype in header.values())
    return set(header) if exact else None


@contextlib.contextmanager
def _weights_to(shards: list[Shard], described: str) -> Iterator[None]:
    """Has ``save_pretrained`` hand over its tensors, renamed and untied as it wants them.

    It has no argument for that, so the function it calls is replaced while it runs. If a later version calls another one, the
    weights end up among the small files and are copied from there: slower, and still right.
    """
    from transformers import modeling_utils

    theirs = getattr(modeling_utils, "safe_save_file", None)

    def write(tensors: Mapping[str, Tensor], path: str, metadata: Mapping[str, str] | None = None) -> None:
        shards.append((Path(path).relative_to(described).as_posix(), dict(tensors), metadata))

    if theirs is not None:
        modeling_utils.safe_save_file = write  # type: ignore[assignment]
    try:
        yield
    finally:
        if theirs is not None:
            modeling_utils.safe_save_file = theirs


def read_model(model: Any, files: CheckpointReader) -> dict[str, Tensor]:
    """The weights that `save_model` wrote, under the names of the model's own state; tied ones under all of their names."""
    saved = read_weights(files)
    own = model.state_dict()
    tied = _tied(own)
    found = {key: saved[names[0]] for key in own if (names := [name for name in tied[key] if name in saved])}
    if len(found) == len(own) and not set(saved) - set(own):
        return found
    # Some families keep their weights under other names, or in other pieces, than the model has them.
    with quiet_loading():
        made, report = type(model).from_pretrained(
            None, config=model.config, state_dict=saved, dtype=model.dtype, output_loading_info=True
        )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if keys := sorted(map(str, report.get(kind, ()))):
            raise UserError(f"'{files.folder}' holds another model: {kind.replace('_', ' ')} {', '.join(keys[:3])}.")
    return made.state_dict()


def read_weights(files: CheckpointReader) -> dict[str, Tensor]:
    """All tensors of a model folder, from one file or several."""
    if INDEX not in files:
        return files.read_tensors(WEIGHTS)
    listed = files.read_json(INDEX)
    try:
        shards = sorted(set(listed["weight_map"].values()))
    except (KeyError, TypeError, AttributeError):
        raise Damaged(f"{files.folder / INDEX} is damaged: it does not say which file holds which tensor.") from None
    found: dict[str, Tensor] = {}
    for shard in shards:
        found |= files.read_tensors(str(shard))
    return found


def _tied(state: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """For each name all names of the same memory, its own first."""
    same: dict[tuple[int, Any], list[str]] = {}
    for key, tensor in state.items():
        same.setdefault((tensor.data_ptr(), tensor.shape), []).append(key)
    return {key: sorted(same[tensor.data_ptr(), tensor.shape], key=lambda name: name != key) for key, tensor in state.items()}


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Without the progress bars `transformers` draws over whatever else is on the screen."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()
