"""What was trained, for other programs: a whole model for `transformers`, vLLM and llama.cpp, or adapters for peft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from upslope.errors import MissingExtra, UserError, install_extra
from upslope.policies.adapters import lora_config
from upslope.policies.language_model import LanguageModel
from upslope.policies.model_files import quiet_loading

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
PEFT_PREFIX = "base_model.model."
"""Before the names of modules in peft's files."""


def write_model(policy: LanguageModel, folder: Path, dtype: str) -> None:
    """Model, config, tokenizer, chat template and generation settings as ``from_pretrained`` reads them, weights in ``dtype``."""
    model = policy.model.to(DTYPES[dtype])
    wrong = [name for name, value in model.named_parameters() if not bool(value.isfinite().all())]
    if wrong:
        raise UserError(f"{wrong[0]} has numbers that {dtype} cannot hold. Give --dtype bfloat16 or float32.")
    with quiet_loading():
        model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)


def write_adapters(weights: dict[str, Tensor], rank: int, base: str, tokenizer: Any, folder: Path) -> None:
    """Adapters in peft's own format: ``PeftModel.from_pretrained(model, folder)`` puts them on the model at ``base``.

    Args:
        weights: by the names that they have inside our models (`upslope.policies.adapters.adapters`).
    """
    try:
        import peft  # noqa: F401
    except ImportError:
        raise MissingExtra("peft is", install_extra("lora")) from None
    from safetensors.torch import save_file

    modules = sorted({name.partition(".lora_")[0].rsplit(".", 1)[-1] for name in weights})
    config = lora_config(rank, modules)
    config.base_model_name_or_path, config.task_type, config.inference_mode = base, "CAUSAL_LM", True
    named = {PEFT_PREFIX + name.replace(".default.", "."): value.contiguous() for name, value in weights.items()}
    config.save_pretrained(folder)
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
