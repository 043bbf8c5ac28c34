"""Policies: what picks actions and can say how likely each was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from upslope.errors import UserError, did_you_mean
from upslope.policies.adapter_files import holds_model
from upslope.policies.language_model import LanguageModel
from upslope.policies.loading import from_folder, tokenizer_in
from upslope.policies.smollm2 import load_smollm2
from upslope.policies.text_inputs import TextInputs
from upslope.policies.tiny import tiny_from_spec
from upslope.policies.trained import is_run, trained_weights

__all__ = ["LanguageModel", "TextInputs", "load_language_model", "load_tokenizer"]

BUILT_IN = ("tiny", "smollm2")


def load_language_model(
    spec: str, seed: int, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """The language model a user named, in float32 on the CPU unless it goes straight to another place.

    Args:
        spec: ``"tiny"`` (untrained; sizes as in ``"tiny:layers=4,width=128"``), ``"smollm2"``, the path of a folder that
            `transformers` can load, or the folder of a run, whose best or last weights are taken. Nothing is ever downloaded.
        seed: Of the weights of ``"tiny"``; the others come as they are.
        device: Where the weights of a folder go from its files, if they can (`upslope.policies.loading.from_folder`).
        dtype: What they are held in there.

    Raises:
        UserError: if the spec names none of these, or the folder's model is not whole.
    """
    name, _, options = spec.partition(":")
    if name == "tiny":
        return tiny_from_spec(options, seed)
    if spec == "smollm2":
        return load_smollm2()
    return from_folder(_model_folder(spec), Path(spec).expanduser().resolve().name, device, dtype)


def load_tokenizer(spec: str) -> Any:
    """The tokenizer of the model a user named; of a folder it is all that is read."""
    if spec == "smollm2" or spec.partition(":")[0] == "tiny":
        return load_language_model(spec, 0).tokenizer
    return tokenizer_in(_model_folder(spec))


def _model_folder(spec: str) -> Path:
    folder = trained_weights(spec) if is_run(spec) else Path(spec).expanduser()
    if not folder.is_dir():
        raise UserError(_not_found(spec, folder))
    if not holds_model(folder):
        raise UserError(f"the folder '{folder}' has no config.json: give the one that was written by save_pretrained.")
    return folder


def _not_found(spec: str, folder: Path) -> str:
    looked = f"no model {spec!r}: neither {' nor '.join(map(repr, BUILT_IN))} nor a folder (looked for '{folder.absolute()}')."
    if spec.count("/") == 1 and not spec.startswith((".", "/", "~")):
        name = spec.rpartition("/")[2]
        fetch = f"hf download {spec} --local-dir {name}, then --model ./{name}"
        return f"{looked} If it is a name on the Hugging Face hub: nothing is downloaded here. Fetch it: {fetch}."
    return looked + did_you_mean(spec, BUILT_IN)
