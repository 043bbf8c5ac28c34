"""A text run's result as a folder for other programs: written whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from upslope.errors import Remark, UserError, did_you_mean
from upslope.plain_data import JsonDict
from upslope.policies import LanguageModel, load_language_model
from upslope.policies.adapter_files import (
    BESIDE,
    Base,
    holds_model,
    names_of,
    own_file,
    read_adapters,
    tokenizer_files,
    write_adapters,
)
from upslope.policies.adapters import lora_config
from upslope.policies.export import DTYPES, write_model
from upslope.policies.gguf_file import check_gguf, write_gguf
from upslope.policies.loading import from_folder
from upslope.policies.reward_runs import scoring_head
from upslope.run.adapter_base import check_base, needs_copy
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter
from upslope.runtime.python_objects import MODEL_FOLDER
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.settings import Settings

if TYPE_CHECKING:
    from upslope.run import Run


CONTROL_FILES = (".onnx", ".pt")


@dataclass(frozen=True)
class TextExport:
    """What is wanted of a text run."""

    merge: bool = False
    """Adapters become part of the weights: a model that needs no peft. Without it they are written alone, as peft has them."""
    checkpoint: str = ""
    """``"best"``, ``"last"`` or the number of a step; empty takes the best one where it was kept, else the last."""
    dtype: str = ""
    """Of the weights; empty is bfloat16, and float32 for adapters alone."""
    gguf: bool = False
    """Also a ``.gguf`` file for llama.cpp."""


def export_text(run: Run, to: str | Path, wanted: TextExport) -> JsonDict:
    """Writes the folder and says what is in it. No code that the run holds is run.

    Raises:
        UserError: before anything is written, if the folder is not empty or something asked for does not fit the run.
    """
    target = Path(to).expanduser()
    _check_target(target, run.table["task"])
    if wanted.dtype and wanted.dtype not in DTYPES:
        raise UserError(f"--dtype {wanted.dtype!r} is none of {', '.join(DTYPES)}.{did_you_mean(wanted.dtype, DTYPES)}")
    files = _checked_files(run.folder, _chosen(run.folder, wanted.checkpoint))
    adapted = bool(own_file(files))
    if adapted and wanted.gguf and not wanted.merge:
        raise UserError(f"--gguf holds whole weights, and {run.path} trained adapters. Give --merge too.")
    if wanted.merge and not adapted:
        warnings.warn(Remark(f"--merge is not needed: {run.path} has no adapters, its weights are whole."), stacklevel=3)
    alone = adapted and not wanted.merge
    dtype = wanted.dtype or ("float32" if alone else "bfloat16")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        if alone:
            _write_adapters(run, files, dtype, draft, target.absolute())
        else:
            _write_whole(run, files, dtype, wanted.gguf, draft)
        if (head := scoring_head(run.table)) is not None:  # what makes it a reward model
            shutil.copyfile(files.folder / f"head-{head[0]}.safetensors", draft / f"head-{head[0]}.safetensors")
        draft.chmod(0o755)
        if target.exists():
            target.rmdir()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return {"folder": str(target), "holds": "adapters" if alone else "model", "dtype": dtype, "checkpoint": files.folder.name}


def _check_target(target: Path, task: str) -> None:
    if target.suffix in CONTROL_FILES:
        raise UserError(f"--to {target.name} is for networks of environments; {task} is answered in text. Give a new folder.")
    if target.exists() and not target.is_dir():
        raise UserError(f"--to {target} is a file; a text run is written as a folder. Give another name.")
    if target.is_dir() and any(target.iterdir()):
        raise UserError(f"--to {target} is not empty. Give a new folder, or empty that one.")


def _chosen(folder: RunFolder, asked: str) -> Path:
    """The checkpoint that is meant."""
    if asked == "best" or (not asked and folder.best.is_dir()):
        return folder.kept_best()
    if asked in ("", "last"):
        return folder.latest()
    found = {int(path.name[5:]): path for path in folder.checkpoints()}
    if not asked.isdecimal() or int(asked) not in found:
        there = ", ".join([*(["best"] if folder.best.is_dir() else []), *map(str, sorted(found))]) or "none yet"
        raise UserError(f"--checkpoint {asked!r} is not there: give best, last or a step. {folder.path} has {there}.")
    return found[int(asked)]


def _checked_files(folder: RunFolder, checkpoint: Path) -> CheckpointReader:
    """The files of a checkpoint, every byte as it was written."""
    files = folder.reader(checkpoint)
    if not holds_model(checkpoint):
        raise UserError(f"{checkpoint} holds no language model.")
    for name in files.names():
        files.check(name)
    return files


def _write_whole(run: Run, files: CheckpointReader, dtype: str, gguf: bool, draft: Path) -> None:
    """Adapters are folded in as the checkpoint is loaded; older checkpoints have them folded in already."""
    policy = from_folder(files.folder, run.path.resolve().name)
    if gguf:
        check_gguf(policy)
    write_model(policy, draft, dtype)
    if gguf:
        write_gguf(policy, draft, draft / f"{policy.name}-{dtype}.gguf", dtype)


def _write_adapters(run: Run, files: CheckpointReader, dtype: str, draft: Path, target: Path) -> None:
    """The adapters, and the model they belong to where that is in no folder of the user's."""
    settings, own, model = Settings(**run.table["settings"]), run.path / MODEL_FOLDER, run.table["model"]
    policy = load_language_model(str(own) if own.is_dir() else model, settings.seed)
    policy.adapted = True  # what they are added to, before they are
    check_base(run.folder, policy)
    written = CheckpointWriter(draft)
    if own.is_dir() or needs_copy(policy, model):
        base = _base_beside(policy, draft, target)
    else:
        assert policy.source is not None
        base = Base.at(policy.source)
    base = replace(base, precision="nf4" if settings.base_precision == "nf4" else "")
    weights = {name: value.to(DTYPES[dtype]) for name, value in read_adapters(files).items()}
    config = lora_config(settings.lora, names_of(weights))
    write_adapters(weights, config, tokenizer_files(policy.tokenizer), base, written)


def _base_beside(policy: LanguageModel, draft: Path, target: Path) -> Base:
    """The model, written along: it takes no room of its own where its files can be linked."""
    with CheckpointWriter(draft / BESIDE) as written:
        policy.save_base(written)
    (draft / BESIDE / "digests.json").unlink()  # of a run's folders only
    return Base(target / BESIDE, Base.at(draft / BESIDE).digests, BESIDE)
