"""Text inputs: what a language model needs, beside the sampled ids, to evaluate a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TextInputs:
    """What a language model needs beside the sampled ids to look at a row again."""

    prompt: Tensor
    """``[N, P]`` ids, padded on the left."""
    prompt_mask: Tensor
    """``[N, P]``, 1 on the tokens of the prompt."""
    experts: Tensor | None = None
    """``[N, P + T - 1, layers, k]``: which experts a pass took for each token, to take them again."""
    kept: Tensor | None = None
    """``[N]``: what the pass that sampled the rows calls them (`ActivationCache`), if it was kept."""

    def take(self, pick) -> TextInputs:
        experts, kept = (None if column is None else pick(column) for column in (self.experts, self.kept))
        return TextInputs(pick(self.prompt), pick(self.prompt_mask), experts, kept)

    def hidden(self, where: Tensor, token: int) -> TextInputs:
        """The same with another token at these places ``[N, P]``."""
        return TextInputs(torch.where(where, token, self.prompt), self.prompt_mask)
