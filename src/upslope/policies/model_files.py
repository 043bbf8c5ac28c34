"""Model files: a `transformers` model and its tokenizer to and from the files of a checkpoint, every byte under a digest."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from upslope.errors import UserError
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, Damaged

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def save_model(model: Any, tokenizer: Any, files: CheckpointWriter, weights: Mapping[str, Tensor] | None = None) -> None:
    """What ``save_pretrained`` writes of both. The weights go straight to their place; the small files by way of a folder.

    Args:
        weights: in place of the model's own.
    """
    with tempfile.TemporaryDirectory(prefix="upslope-") as described:
        with quiet_loading(), _weights_to(files, described):
            model.save_pretrained(described, state_dict=None if weights is None else dict(weights))
        tokenizer.save_pretrained(described)
        for file in sorted(path for path in Path(described).rglob("*") if path.is_file()):
            files.copy(file, file.relative_to(described).as_posix())


@contextlib.contextmanager
def _weights_to(files: CheckpointWriter, described: str) -> Iterator[None]:
    """Has ``save_pretrained`` hand its tensors, renamed and untied as it wants them, to our writer.

    It has no argument for that, so the function it calls is replaced while it runs. If a later version calls another one, the
    weights end up with the small files and are copied from there: slower, and still right.
    """
    from transformers import modeling_utils

    theirs = getattr(modeling_utils, "safe_save_file", None)

    def write(tensors: Mapping[str, Tensor], path: str, metadata: Mapping[str, str] | None = None) -> None:
        files.write_tensors(Path(path).relative_to(described).as_posix(), tensors, metadata)

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
