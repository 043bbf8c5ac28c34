"""Blank models: a language model with its shape and its tokenizer and without any weights, to say what a run would take.

Its parameters are on torch's device ``meta``. Of a folder the configuration and the headers of its weight files are read, and held
against each other: a file that is missing, cut short or of another model is found before anything is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from upslope.errors import UserError
from upslope.policies import _model_folder
from upslope.policies.adapter_files import base_of, holds_adapters
from upslope.policies.given import GivenModel
from upslope.policies.language_model import LanguageModel
from upslope.policies.loading import check_json, one_line, refuse_encoder_decoder, tokenizer_in
from upslope.policies.model_files import quiet_loading, weight_files
from upslope.policies.smollm2 import config_and_tokenizer, converted_folder
from upslope.policies.tiny import tiny_from_spec
from upslope.runtime.tensor_files import read_shapes


def blank_language_model(spec: str | GivenModel) -> LanguageModel:
    """The language model a user named, without its weights.

    Raises:
        UserError: as `upslope.policies.load_language_model`, as far as that can be seen without them.
    """
    if isinstance(spec, GivenModel):
        with one_line(f"the {spec.name} given as model cannot be made anew", cure=""), torch.device("meta"):
            made = type(spec.model)(spec.model.config)
        return LanguageModel(made, spec.tokenizer, spec.name)
    name, _, options = spec.partition(":")
    if name == "tiny":
        with torch.device("meta"):
            return tiny_from_spec(options, 0)
    if spec == "smollm2" and not converted_folder().is_dir():
        config, tokenizer = config_and_tokenizer()
        return LanguageModel(_blank(config), tokenizer, spec)
    folder = converted_folder() if spec == "smollm2" else _model_folder(spec)
    policy = LanguageModel(
        blank_model(_weights_of(folder)), tokenizer_in(folder), folder.resolve().name if spec != "smollm2" else spec
    )
    policy.source = folder
    return policy


def blank_weights(spec: str) -> Any | None:
    """The model alone of a folder or a run that a user named; None of those that are made on the spot or still packed."""
    name = spec.partition(":")[0]
    if name == "tiny" or (spec == "smollm2" and not converted_folder().is_dir()):
        return None
    return blank_model(converted_folder() if spec == "smollm2" else _weights_of(_model_folder(spec)))


def is_merged(spec: str) -> bool:
    """Whether what a user named is adapters, which are merged in float32 when they are loaded."""
    made = spec.partition(":")[0] == "tiny" or spec == "smollm2"
    return not made and holds_adapters(_model_folder(spec))


def _weights_of(folder: Path) -> Path:
    """Where the weights of a model's folder are: of adapters, which are merged when they are loaded, in another one."""
    return base_of(folder).folder if holds_adapters(folder) else folder


def blank_model(folder: Path) -> Any:
    """The model in a folder, without its weights.

    Raises:
        UserError: if there is none, or its files are not as its configuration says.
    """
    from transformers import AutoConfig

    check_json(folder / "config.json")
    with one_line(f"the folder '{folder}' holds no causal language model that transformers can load"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        refuse_encoder_decoder(f"the folder '{folder}' holds", config)
        model = _blank(config)
    _check_headers(folder, model)
    return model


def _blank(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), quiet_loading():
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def _check_headers(folder: Path, model: Any) -> None:
    """Refuses weight files that are not there, are cut short or hold other shapes. Families that keep their weights under other
    names than the model has them are let through."""
    wanted, found = {name: list(value.shape) for name, value in model.state_dict().items()}, dict[str, list[int]]()
    files = weight_files(folder)
    for name in files:
        file = folder / name
        if not file.is_file():
            raise UserError(f"'{file}' is missing, which the model's index names. Copy the folder again.")
        try:
            found |= read_shapes(file)
        except (OSError, ValueError) as problem:
            raise UserError(f"'{file}' cannot be read: {problem}. Copy the folder again.") from None
    if not files or set(found) - set(wanted):
        return
    if wrong := [name for name, shape in found.items() if shape != wanted[name]]:
        said = f"{wrong[0]} ({found[wrong[0]]} in the file, {wanted[wrong[0]]} in config.json)"
        raise UserError(f"the model in '{folder}' has tensors of another size than its config.json says: {said}. Copy the folder "
                        "again, or mend its config.json.")  # fmt: skip
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    if lacking := [name for name, value in model.named_parameters() if name not in found and name not in tied]:
        raise UserError(f"the model in '{folder}' lacks {lacking[0]}: config.json asks for it. Copy the folder again, or mend its "
                        "config.json.")  # fmt: skip
