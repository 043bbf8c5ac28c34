"""Adapters as files: a folder of peft's, with its own note of which model the adapters belong to.

Such a folder has no weights but those of the adapters. ``adapter_config.json`` names the folder of the base by its absolute path,
as peft and `transformers` read it. ``base.json`` beside it is ours: where the base is from here, so that both can be moved
together, and the digests of its files, so that adapters are never put on another model than they were trained on.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from upslope.errors import MissingExtra, UserError, install_extra
from upslope.plain_data import JsonDict
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter
from upslope.runtime.data_files import file_digest

CONFIG, WEIGHTS, BASE = "adapter_config.json", "adapter_model.safetensors", "base.json"
OLD_WEIGHTS = "adapters.safetensors"
"""In checkpoints up to format 3, beside the whole model with the adapters folded in."""
PREFIX = "base_model.model."
"""Before the names of modules in peft's files."""
BESIDE = "base"
"""The folder of a base that is written along."""


@dataclass(frozen=True)
class Base:
    """The model that adapters belong to.

    Fields:
        folder: where it is, as `transformers` loads it.
        digests: of its files, by name (`upslope.runtime.data_files.file_digest`).
        within: where that is from the folder of the adapters, if both are moved together; else empty.
        precision: ``nf4`` where its matrices were in four bits while the adapters learned (``--base-precision``): they belong to
            what these stand for. Else empty.
    """

    folder: Path
    digests: Mapping[str, str] = field(default_factory=dict)
    within: str = ""
    precision: str = ""

    @classmethod
    def at(cls, folder: Path, within: str = "") -> Base:
        """The model in a folder, its files read for their digests."""
        return cls(folder, {file.name: file_digest(file) for file in model_files(folder)}, within)

    def check(self, whose: str) -> None:
        """Refuses files that are not those the adapters were trained on.

        Args:
            whose: the adapters, in words.
        """
        check_digests(self.digests, {file.name: file for file in model_files(self.folder)}, whose)

    def table(self) -> JsonDict:
        """As ``base.json`` has it."""
        held = {"precision": self.precision} if self.precision else {}
        return {"folder": str(self.folder.absolute()), "within": self.within, "digests": dict(self.digests), **held}


def model_files(folder: Path) -> list[Path]:
    """The files of a model that decide what it computes."""
    weights = sorted(file for suffix in ("safetensors", "bin") for file in folder.glob(f"*.{suffix}"))
    return [folder / "config.json", *weights]


def check_digests(known: Mapping[str, str], files: Mapping[str, Path], whose: str) -> None:
    """Refuses a base whose files are not those that adapters were trained on; where nothing is known of it, nothing is said."""
    cure = "Put the old model back in that place, or train new adapters on this one: a new run with --lora."
    for name, digest in known.items():
        file = files.get(name)
        if file is None or not file.is_file():
            where = f" ({file})" if file is not None else ""
            raise UserError(f"{name}{where} of the model that {whose} belong to is gone. {cure}")
        if (now := file_digest(file)) != digest:
            raise UserError(f"{file} has changed since {whose} were trained on it: its digest was {digest} and is {now}. {cure}")
    if further := sorted(set(files) - set(known)) if known else []:
        raise UserError(f"{files[further[0]]} was not there when {whose} were trained on the model beside it. {cure}")


def holds_model(folder: Path) -> bool:
    """Whether a folder holds a language model: whole, or as adapters."""
    return (folder / "config.json").is_file() or holds_adapters(folder)


def holds_adapters(folder: Path) -> bool:
    """Whether a folder is one of peft's, without the model its adapters belong to."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def own_file(names: CheckpointReader) -> str:
    """The file with the adapters' own weights; empty where there is none."""
    return next((name for name in (WEIGHTS, OLD_WEIGHTS) if name in names), "")


def read_adapters(files: CheckpointReader) -> dict[str, Tensor]:
    """The adapters of a checkpoint by the names they have inside our models (`upslope.policies.adapters.adapters`)."""
    found = files.read_tensors(own_file(files) or WEIGHTS)
    return {_own_name(name): value for name, value in found.items()}


def write_adapters(
    weights: Mapping[str, Tensor], config: Any, tokenizer: Mapping[str, bytes], base: Base, files: CheckpointWriter
) -> None:
    """A folder of peft's.

    Args:
        weights: by the names they have inside our models.
        config: peft's settings of them.
        tokenizer: its files, from `tokenizer_files`.
    """
    told = config_table(config) | {"base_model_name_or_path": str(base.folder.absolute())}
    named = {PREFIX + name.replace(".default.", "."): value for name, value in weights.items()}
    files.write_tensors(WEIGHTS, named, {"format": "pt"})
    files.write(CONFIG, (json.dumps(told, indent=2, sort_keys=True) + "\n").encode())
    files.write_json(BASE, base.table())
    for name, data in tokenizer.items():
        files.write(name, data)


def config_table(config: Any) -> JsonDict:
    """peft's settings as it writes them, always in the same order."""
    with tempfile.TemporaryDirectory(prefix="upslope-") as folder:
        config.save_pretrained(folder)
        found = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
    modules = found.get("target_modules")  # a set there
    found |= {"target_modules": sorted(modules)} if isinstance(modules, list) else {}
    return found | {"task_type": "CAUSAL_LM", "inference_mode": True}


def tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    """What ``save_pretrained`` writes of a tokenizer."""
    with tempfile.TemporaryDirectory(prefix="upslope-") as folder:
        tokenizer.save_pretrained(folder)
        found = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in found}


def base_of(folder: Path) -> Base:
    """The base of a folder of adapters, of ours or of others, found and not yet read.

    Raises:
        UserError: if it is nowhere here.
    """
    named, own = _read(folder / CONFIG).get("base_model_name_or_path"), _read(folder / BASE)
    within, digests = str(own.get("within") or ""), own.get("digests")
    known = {str(name): str(digest) for name, digest in digests.items()} if isinstance(digests, dict) else {}
    if not isinstance(named, str) or not named:
        raise UserError(
            f"'{folder / CONFIG}' names no model that its adapters belong to (base_model_name_or_path). Write it there."
        )
    if (precision := str(own.get("precision") or "")) not in ("", "nf4"):
        raise UserError(f"'{folder / BASE}' has the precision {precision!r}, which this version does not know. Update upslope.")
    looked = [*([folder / within] if within else []), Path(named).expanduser(), folder / named]
    for place in looked:
        if holds_model(place):
            return Base(place.resolve() if place == looked[0] and within else place, known, within, precision)
    raise UserError(
        f"the adapters in '{folder}' belong to the model {named!r}, and there is no such folder here. Nothing is downloaded: put "
        f"the model there, or write where it is into {CONFIG} (base_model_name_or_path)."
    )


def merged_into(model: Any, folder: Path) -> Any:
    """The model with the adapters of a folder folded into its weights, by peft itself: it knows every kind of them."""
    try:
        from peft import PeftModel
    except ImportError:
        raise MissingExtra("peft is", install_extra("lora")) from None
    made = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    if hasattr(made, "peft_config"):  # or it would be taken for a model with adapters still
        del made.peft_config
    return made.requires_grad_(True)


def _own_name(name: str) -> str:
    """A name in peft's file, or in an old one of ours, as it is inside our models."""
    if not name.startswith(PREFIX):
        return name
    plain = name.removeprefix(PREFIX)
    for kind in (".lora_A.", ".lora_B."):
        plain = plain.replace(f"{kind}weight", f"{kind}default.weight")
    return plain


def _read(file: Path) -> JsonDict:
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"'{file}' cannot be read ({problem}). Copy the folder again.") from None
    return found if isinstance(found, dict) else {}


def names_of(several: Iterable[str]) -> list[str]:
    """The kinds of modules that adapters are on, from the names of their weights."""
    return sorted({name.partition(".lora_")[0].rsplit(".", 1)[-1] for name in several})
