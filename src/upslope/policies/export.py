"""What was trained, for other programs: a whole model for `transformers`, vLLM and llama.cpp."""

from __future__ import annotations

from pathlib import Path

import torch

from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel
from upslope.policies.model_files import quiet_loading

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def write_model(policy: LanguageModel, folder: Path, dtype: str) -> None:
    """Model, config, tokenizer, chat template and generation settings as ``from_pretrained`` reads them, weights in ``dtype``."""
    model = policy.model.to(DTYPES[dtype])
    wrong = [name for name, value in model.named_parameters() if not bool(value.isfinite().all())]
    if wrong:
        raise UserError(f"{wrong[0]} has numbers that {dtype} cannot hold. Give --dtype bfloat16 or float32.")
    with quiet_loading():
        model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
