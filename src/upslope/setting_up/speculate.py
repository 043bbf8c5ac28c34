"""Drafts of what rows may say next (``--speculate``): where there are none, said before anything is loaded."""

from __future__ import annotations

from upslope.errors import UserError
from upslope.runtime.settings import Settings


def check_speculate(settings: Settings) -> None:
    """Refuses drafts that were asked for where nobody makes any; left to themselves they are made where they pay."""
    if isinstance(settings.speculate, str):
        return
    told = f"--speculate {settings.speculate}"
    if settings.plain:
        raise UserError(
            f"{told} with --plain: `transformers` samples then, a token of each answer at a time. Leave one of them out."
        )
    if settings.engine != "torch":
        raise UserError(f"{told} with --engine {settings.engine}: drafts are made by our own engine; others have settings of their "
                        "own for that. Leave --speculate out, or take --engine torch.")  # fmt: skip
    if settings.device == "cuda":
        raise UserError(f"{told} on a GPU: steps of sampling are recorded graphs there, which draw one token of each answer and "
                        "have no drafts. Leave it out, or give --device cpu.")  # fmt: skip


def check_can_draft(settings: Settings, name: str, ours: bool) -> None:
    """Refuses drafts for a model that `transformers` computes.

    Args:
        ours: whether our own decoder computes it.
    """
    if not isinstance(settings.speculate, str) and not ours:
        raise UserError(f"--speculate {settings.speculate}: {name!r} is computed by `transformers`, which drafts nothing. Leave it "
                        "out, or take a model that is computed here: a Llama, Mistral, Qwen2, Qwen3 or Gemma.")  # fmt: skip
