"""Loading a language model from a folder of the user's: whole, or refused in one line that names what is wrong.

`transformers` fills what a file lacks with random numbers and leaves out what a model has no place for, with a remark in a log.
Here both are errors: a run that learns from a model that is not the one in the folder is worth nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from upslope.errors import UserError
from upslope.policies.adapter_files import base_of, holds_adapters, merged_into
from upslope.policies.direct_loading import load_directly
from upslope.policies.forward.blocks import round_to_nf4
from upslope.policies.language_model import LanguageModel
from upslope.policies.model_files import quiet_loading
from upslope.runtime.memory import explain_out_of_memory

NAMED = 3
"""Tensors that a message names."""
LONGEST_CAUSE = 300
CURE = "If a file is missing or was cut off, copy the folder again."


def from_folder(
    folder: Path, name: str = "", device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """The model and the tokenizer in a folder that `save_pretrained` wrote.

    Of a folder of peft's it is the model that the adapters belong to, with the adapters folded into its weights; where these were
    in four bits while the adapters learned, into what those stand for.

    Args:
        device: where its weights go straight from the files, of models that are computed here and are whole in safetensors files;
            others are loaded in float32 on the CPU.
        dtype: what they are held in there.

    Raises:
        UserError: if anything of the model is missing, left over, of another size or cannot be read; or if it is not the one that
            the adapters were trained on.
    """
    if holds_adapters(folder):
        return _with_adapters(folder, name)
    for file in ("config.json", "generation_config.json"):
        check_json(folder / file)
    with one_line(f"the folder '{folder}' holds no causal language model that transformers can load"):
        model = _whole_model(folder, device, dtype)
    tokenizer = tokenizer_in(folder)
    with one_line(f"the model in '{folder}' cannot be used with its tokenizer"):
        policy = LanguageModel(model, tokenizer, name or folder.resolve().name)
    policy.source = folder
    return policy


def _with_adapters(folder: Path, name: str) -> LanguageModel:
    base = base_of(folder)
    base.check(f"the adapters in '{folder}'")
    policy = from_folder(base.folder, name or folder.resolve().name)
    if base.precision:
        if policy.body is None:
            raise UserError(f"the adapters in '{folder}' learned beside weights in four bits, and the model in '{base.folder}' is "
                            "none that is computed here. Put the old model back in that place.")  # fmt: skip
        round_to_nf4(policy.body)
    with one_line(f"the adapters in '{folder}' cannot be put on the model in '{base.folder}'"):
        model = merged_into(policy.model, folder)
    with one_line(f"the model in '{base.folder}' cannot be used with the tokenizer in '{folder}'"):
        return LanguageModel(model, tokenizer_in(folder), policy.name)  # it is in no folder as it is: no `source`


def tokenizer_in(folder: Path) -> Any:
    """The tokenizer in a folder, looked at.

    Raises:
        UserError: if there is none that can be loaded.
    """
    if holds_adapters(folder) and not (folder / "tokenizer_config.json").is_file():  # of others, who keep it with the base
        return tokenizer_in(base_of(folder).folder)
    with one_line(f"the tokenizer in '{folder}' cannot be loaded"):
        tokenizer = load_tokenizer(folder)
        if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):  # what is made of a family's name alone
            raise UserError(f"'{folder}' has no tokenizer: its files (tokenizer.json or the like) are missing. Copy them there.")
    return tokenizer


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def config_in(folder: Path) -> Any:
    """The configuration of the model in a folder; of adapters, that of the model they belong to."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(base_of(folder).folder if holds_adapters(folder) else folder, local_files_only=True)


def refuse_encoder_decoder(where: str, config: Any) -> None:
    """Refuses a model that answers in another way than by continuing a text."""
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(
            f"{where} a {config.model_type} model, an encoder with a decoder: it answers in another way than "
            "by continuing a text. Take a model with a decoder alone, such as Llama, Qwen or Gemma."
        )


def _whole_model(folder: Path, device: str | torch.device, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    refuse_encoder_decoder(f"the folder '{folder}' holds", config)
    if (direct := load_directly(folder, config, device, dtype)) is not None:
        return direct
    with quiet_loading():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=torch.float32, local_files_only=True, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    model, found = loaded
    check_found(f"the model in '{folder}'", found, type(model).__name__)
    return model


def check_found(which: str, found: Mapping[str, Any], kind: str) -> None:
    """Refuses what `transformers` had to fill in or to leave out.

    Args:
        found: what it says of that.
        kind: of model, by its class.
    """
    wrong = [f"{key} ({list(there)} in the file, {list(wanted)} in config.json)" for key, there, wanted in found["mismatched_keys"]]
    for keys, what in (
        (found["missing_keys"], "lacks {}: config.json asks for it. Copy the folder again, or mend its config.json."),
        (wrong, "has tensors of another size than its config.json says: {}. Copy the folder again, or mend its config.json."),
        (found["unexpected_keys"], "has tensors that a {kind} has no place for: {}. Its config.json may be that of another model."),
    ):
        if keys:
            raise UserError(f"{which} {what.format(_some(keys), kind=kind)}")


def check_json(file: Path) -> None:
    """Refuses a file that is no JSON object; where there is none, nothing is wrong yet."""
    try:
        read = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except OSError as problem:
        raise UserError(f"'{file}' cannot be read: {problem.strerror or problem}.") from None
    except RecursionError:
        raise UserError(f"'{file}' is nested too deep to be the settings of a model. Copy the folder again.") from None
    except ValueError as problem:
        raise UserError(f"'{file}' is not JSON ({problem}); it may be cut off. Copy the folder again.") from None
    if not isinstance(read, dict):
        raise UserError(f"'{file}' is a JSON {type(read).__name__}, not an object of settings. Copy the folder again.")


@contextlib.contextmanager
def one_line(what: str, cure: str = CURE) -> Iterator[None]:
    """Whatever fails inside is told as ``what`` with its cause: readers of files written by others raise errors of all kinds."""
    try:
        with _silent_reports():
            yield
    except UserError:
        raise
    except BaseException as problem:
        # The tokenizers library panics with an exception of its own, which is not an `Exception`.
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        raise explain_out_of_memory(problem) or UserError(f"{what}: {_cause(problem)} {cure}".rstrip()) from problem


def _cause(problem: BaseException) -> str:
    """An error in one line."""
    if isinstance(problem, RecursionError):
        return "something in it is nested too deep."
    said = " ".join(str(problem).split())
    said = said if len(said) <= LONGEST_CAUSE else f"{said[:LONGEST_CAUSE]}..."
    # What the libraries raise for files that were cut off names no file and no reason, only the place where they stumbled.
    told = said if isinstance(problem, (OSError, ValueError)) and said else f"{type(problem).__name__}: {said}"
    return f"{told}{'' if told.endswith('.') else '.'}"


def _some(keys: Iterable[str]) -> str:
    names = sorted(keys)
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


@contextlib.contextmanager
def _silent_reports() -> Iterator[None]:
    """Without the table that `transformers` logs of what it has not found: it is told as an error."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)
