"""The layer view: the distribution that a layer would give if it were the last one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from upslope.errors import UserError
from upslope.objective.base import ModelView

LAYERS = ("layers", "h", "blocks")
NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")
"""What models call their stack of layers, and the norm behind it."""


@dataclass(frozen=True)
class Layer(ModelView):
    r"""Reads the policy off the residual stream behind a layer: :math:`\pi^l = \mathrm{softmax}(W_U h^l / T)` (BuPO).

    The layers above are not computed and get no gradient; those below and the shared head do. Only learning sees this policy:
    answers are sampled from the whole model.

    Fields:
        layer: how many layers, from the first. Negative counts from the end, -1 being the last; beyond the last is the last. 0 is
            the whole model.
        final_norm: send the stream through the model's last norm before the head. The last layer with it is the whole model.
    """

    layer: int = 0
    final_norm: bool = False

    @contextlib.contextmanager
    def applied(self, model: Any, experts: Tensor | None = None) -> Iterator[None]:
        """While this lasts, ``model`` ends behind the layer."""
        decoder = model.get_decoder() if self.layer else None
        if decoder is None:
            yield
            return
        layers, norm = _named(decoder, LAYERS), _named(decoder, NORMS)
        stack, last = getattr(decoder, layers), getattr(decoder, norm)
        setattr(decoder, layers, stack[: self.depth(len(stack))])
        setattr(decoder, norm, last if self.final_norm else nn.Identity())
        try:
            yield
        finally:
            setattr(decoder, layers, stack)
            setattr(decoder, norm, last)

    def depth(self, layers: int) -> int:
        """How many of a model's layers are computed."""
        if not self.layer:
            return layers
        return max(1, min(self.layer if self.layer > 0 else layers + 1 + self.layer, layers))


def _named(decoder: object, names: tuple[str, ...]) -> str:
    for name in names:
        if isinstance(getattr(decoder, name, None), nn.Module):
            return name
    raise UserError(f"{type(decoder).__name__} keeps its layers in an unknown place (not {', '.join(names)}): no policy "
                    "can be read off inside of it.")  # fmt: skip
