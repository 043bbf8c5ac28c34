"""The forward pass of a Llama-like model on packed tokens, from the model's own parameters.

Each distinct prompt is computed once however many rows continue it; nothing is computed for padding; and of a prompt's last
layer only keys and values are. Autograd runs through all of it, adapters included.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from upslope.policies.anatomy import Anatomy
from upslope.policies.attention import attend
from upslope.policies.blocks import Block, after, blocks_of, norm_weight, projected
from upslope.policies.layout import Layout
from upslope.policies.nodes import turned


def hidden_states(body: Anatomy, layout: Layout, dtype: torch.dtype, recompute: bool = False) -> Tensor:
    """What the head is given at the rows' own tokens ``[S_own, features]``, in float32 or better.

    Args:
        dtype: of the products.
        recompute: keep no activations inside layers; the backward pass computes them again.
    """
    x = body.stack.embed_tokens(layout.ids)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    turn, delta = turns(body, layout), None
    last = len(body.layers) - 1
    for number, block in enumerate(blocks_of(body, dtype)):
        arguments = (body, block, x, delta, turn, layout, number == last)
        if recompute and torch.is_grad_enabled():
            x, delta = checkpoint(_layer, *arguments, use_reentrant=False)
        else:
            x, delta = _layer(*arguments)
    x = x if delta is None else x + delta
    if isinstance(body.stack.norm, nn.Identity):  # what a method has put there to look inside
        return x
    return F.rms_norm(x, x.shape[-1:], norm_weight(body, body.stack.norm), body.eps)


def turns(body: Anatomy, layout: Layout) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the packed tokens' places ``[S, 1, width]``."""
    positions = int(layout.places.max()) + 1 if len(layout.places) else 1
    dtype = torch.promote_types(body.head.weight.dtype, torch.float32)
    cos, sin = body.rotations(positions, layout.places.device, dtype)
    return cos[layout.places].unsqueeze(1), sin[layout.places].unsqueeze(1)


def prompt_memory(body: Anatomy, blocks: Iterable[Block], embedded: Tensor, layout: Layout) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of packed prompts, layer by layer; of the last layer nothing else is computed.

    Args:
        embedded: the tokens' embeddings ``[S, features]``.
    """
    x = embedded.to(torch.promote_types(embedded.dtype, torch.float32))
    turn, found, delta = turns(body, layout), [], None
    turning = body.heads + body.kv_heads
    for number, block in enumerate(blocks):
        x, packed = projected(body, block, x, delta)
        packed = turned(packed, *turn, turning)
        found.append((packed[:, body.heads : turning], packed[:, turning:]))
        if number + 1 < len(body.layers) and len(x):
            x, delta = after(body, block, x, attend(packed, layout, body.heads, body.scale).flatten(1))
    return found


def _layer(
    body: Anatomy, block: Block, x: Tensor, delta: Tensor | None, turn: tuple[Tensor, Tensor], layout: Layout, last: bool
) -> tuple[Tensor, Tensor]:
    """One layer; the last one gives the rows' own tokens only."""
    x, packed = projected(body, block, x, delta)
    packed = turned(packed, *turn, body.heads + body.kv_heads)
    return after(body, block, x[layout.shared :] if last else x, attend(packed, layout, body.heads, body.scale, last).flatten(1))
