"""Models given as Python objects: a `transformers` model with its tokenizer, or a `LanguageModel`.

A run trains a copy, made as if the model had been saved and loaded again: so it is checked like one from a folder, begins with the
same bits from wherever it is resumed, and the caller's object stays as it is.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.fields import shown
from upslope.policies.adapters import folded
from upslope.policies.language_model import LanguageModel
from upslope.policies.loading import check_found, load_tokenizer, one_line, refuse_encoder_decoder
from upslope.policies.model_files import ModelFiles, holds_weights, quiet_loading
from upslope.runtime.files import whole_folder
from upslope.runtime.memory import free_bytes
from upslope.runtime.python_objects import IN_RUN, MODEL_FOLDER

POSSIBLE = (
    "Give a name ('tiny', 'smollm2'), a folder that transformers can load, the folder of a run, or (model, tokenizer): a causal "
    "language model of transformers and its tokenizer."
)


class GivenModel:
    """A model given as an object.

    Args:
        model: A causal language model of `transformers`.
        tokenizer: Its tokenizer.
        weights: In place of the model's own, by name.
        tiny: Whether it is the built-in small model, for the defaults of settings.
    """

    def __init__(self, model: Any, tokenizer: Any, weights: Mapping[str, Tensor] | None = None, tiny: bool = False):
        self.model, self.tokenizer, self.weights, self.tiny = model, tokenizer, weights, tiny
        self.name = type(model).__name__
        self._policy: LanguageModel | None = None

    @property
    def like(self) -> str:
        """The name of the model that it has the defaults of."""
        return "tiny" if self.tiny else self.name

    def policy(self) -> LanguageModel:
        """A copy of it in float32 on the CPU, as it would come out of a folder."""
        self._check_memory()
        with one_line(f"the {self.name} given as model cannot be saved and loaded again, as a run needs it", cure=""):
            copied, tokenizer = self._copied_model(), self._copied_tokenizer()
        with one_line(f"the {self.name} given as model cannot be used with its tokenizer", cure=""):
            self._policy = LanguageModel(copied, tokenizer, self.name)
        return self._policy

    def keep(self, folder: Path) -> str:
        """Writes it below the run's folder, whole or not at all; weights that are in the files it was loaded from are linked."""
        place, files = folder / MODEL_FOLDER, ModelFiles()
        source = self._source()
        with whole_folder(place) as written:
            if source is None or not files.link(self.model, self.tokenizer, written, source):
                files.save(self.model, self.tokenizer, written, self.weights)
        if self._policy is not None:
            self._policy.source = place  # the first checkpoints are these files
        return f"{IN_RUN}/{MODEL_FOLDER}"

    def _check_memory(self) -> None:
        needed, free = 4 * sum(parameter.numel() for parameter in self.model.parameters()), free_bytes()
        if needed > free:
            raise UserError(
                f"the run trains a copy of the {self.name} given as model, which takes {needed / 2**30:.1f} GiB, and "
                f"{free / 2**30:.1f} GiB are free. Save it (model.save_pretrained, tokenizer.save_pretrained), give model=FOLDER."
            )

    def _copied_model(self) -> Any:
        shards = ModelFiles().shards(self.model, self.tokenizer, self.weights)
        saved = {
            name: tensor.detach().to("cpu", torch.float32, copy=True) for _, held, _ in shards for name, tensor in held.items()
        }
        with quiet_loading():
            made, found = type(self.model).from_pretrained(
                None, config=copy.deepcopy(self.model.config), state_dict=saved, dtype=torch.float32, output_loading_info=True,
                ignore_mismatched_sizes=True,
            )  # fmt: skip
        check_found(f"the {self.name} given as model", found, self.name)
        made.generation_config = copy.deepcopy(self.model.generation_config)
        return made

    def _copied_tokenizer(self) -> Any:
        with tempfile.TemporaryDirectory(prefix="upslope-") as folder:
            self.model.config.save_pretrained(folder)  # some tokenizers are told by it
            self.tokenizer.save_pretrained(folder)
            return load_tokenizer(Path(folder))

    def _source(self) -> Path | None:
        """The folder it was loaded from, where its weights are still those."""
        name = str(getattr(self.model, "name_or_path", "") or "")
        folder = Path(name).expanduser()
        return folder if name and self.weights is None and folder.is_dir() and holds_weights(folder, self.model) else None


def given_model(value: object) -> GivenModel:
    """What a user gave as a model.

    Raises:
        UserError: if it is not a causal language model of `transformers` with its tokenizer, or a `LanguageModel`.
    """
    if isinstance(value, LanguageModel):
        _check_model(value.model)
        weights = folded(value.model) if value.adapted else None
        return GivenModel(value.model, value.tokenizer, weights, tiny=value.name == "tiny" and value.source is None)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        model, tokenizer = value
        if _is_tokenizer(model) and not _is_tokenizer(tokenizer):
            raise UserError(
                f"model is ({type(model).__name__}, {type(tokenizer).__name__}): the model comes first, then its tokenizer."
            )
        _check_model(model)
        _check_plain(model)
        if not _is_tokenizer(tokenizer):
            told = f"model is a {type(model).__name__} with {shown(tokenizer)}, a {type(tokenizer).__name__}, as its tokenizer"
            raise UserError(f"{told}. Give what AutoTokenizer.from_pretrained returns: model=(model, tokenizer).")
        return GivenModel(model, tokenizer)
    if _is_tokenizer(value):
        raise UserError(f"model is a {type(value).__name__}, a tokenizer alone. Give model=(model, tokenizer).")
    if isinstance(value, torch.nn.Module):
        _check_model(value)
        _check_plain(value)
        raise UserError(f"model is a {type(value).__name__} without its tokenizer. Give model=(model, tokenizer).")
    raise UserError(f"model is {shown(value)} ({type(value).__name__}). {POSSIBLE}")


def _is_tokenizer(value: object) -> bool:
    from transformers import PreTrainedTokenizerBase

    return isinstance(value, PreTrainedTokenizerBase)


def _check_model(model: object) -> None:
    """Refuses what is no causal language model that a run could load again."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

    kind = type(model).__name__
    if isinstance(model, type):
        raise UserError(f"model is the class {model.__name__}, not a model. Load one: {model.__name__}.from_pretrained(FOLDER).")
    if kind.startswith("Peft") and hasattr(model, "merge_and_unload"):
        raise UserError(
            f"model is a {kind}, with adapters of peft in it. Give (model.merge_and_unload(), tokenizer), with the adapters in its "
            "weights, and lora=RANK to train new ones."
        )
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"model is {shown(kind)}, no model of transformers. {POSSIBLE}")
    refuse_encoder_decoder(f"model is a {kind}:", model.config)
    known = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(model.config), ())
    if type(model) not in (known if isinstance(known, (tuple, list)) else (known,)):
        raise UserError(
            f"model is a {kind}, which AutoModelForCausalLM does not load: a run could not be resumed with it. Take a causal "
            "language model of transformers, such as Llama, Qwen or Gemma, with its head."
        )
    if getattr(model, "is_quantized", False) or not all(each.is_floating_point() for each in model.parameters()):
        raise UserError(f"model is a {kind} in quantized weights, which cannot be trained. Load it without quantization_config.")


def _check_plain(model: Any) -> None:
    """Refuses a model into which others have put adapters: saved, it would be without them."""
    if any("lora_" in name for name, _ in model.named_parameters()):
        raise UserError(
            f"model is a {type(model).__name__} with adapters in it. Merge them (peft: merge_and_unload) or load the model without "
            "them, and give lora=RANK to train new ones."
        )
