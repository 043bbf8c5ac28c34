"""What the weights under adapters are held in (``--base-precision``): what goes together, said before anything is loaded."""

from __future__ import annotations

from typing import Any

from upslope.errors import UserError
from upslope.policies.forward.architecture import architecture
from upslope.runtime.settings import Settings


def check_base_precision(settings: Settings) -> None:
    """Refuses to pack weights that learn, that others compute with, or that products want whole."""
    if settings.base_precision == "auto":
        return
    told = f"--base-precision {settings.base_precision}"
    if settings.shard:
        raise UserError(f"{told} with --shard: parts of weights that learn are held in float32. Leave one of them out.")
    if not settings.lora:
        raise UserError(f"{told} is for weights that stay as they are while adapters beside them learn, and all weights learn. Add "
                        "--lora 32, or leave it out.")  # fmt: skip
    if settings.engine != "torch":
        raise UserError(f"{told} with --engine {settings.engine}: it samples with whole weights, which would be put together at "
                        "every step. Leave one of them out.")  # fmt: skip
    if settings.plain:
        raise UserError(f"{told} with --plain: `transformers` computes then, from whole weights. Leave one of them out.")
    if settings.device == "cuda" and settings.precision == "float32":
        raise UserError(f"{told} with --precision float32: products as precise as that of weights in four bits gain nothing, and "
                        "unpacked matrices take twice the room. Leave --precision out.")  # fmt: skip


def check_can_be_packed(settings: Settings, name: str, model: Any) -> None:
    """Refuses a model that `transformers` computes."""
    if settings.base_precision != "auto" and architecture(model) is None:
        refuse_plain(settings, name)


def refuse_plain(settings: Settings, name: str) -> None:
    """The refusal, of a model by its name."""
    raise UserError(f"--base-precision {settings.base_precision}: {name!r} is computed by `transformers`, from whole weights. "
                    "Leave it out, or take a model that is computed here: a Llama, Mistral, Qwen2, Qwen3 or Gemma.")  # fmt: skip
