"""The forward pass of a Llama-like model on packed tokens, from the model's own parameters.

Each distinct prompt is computed once however many rows continue it; nothing is computed for padding; and of a prompt's last
layer only keys and values are. Autograd runs through all of it, adapters included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from upslope.policies.forward import attention_cpu
from upslope.policies.forward.activation_cache import ActivationCache
from upslope.policies.forward.architecture import Architecture
from upslope.policies.forward.attention import attend
from upslope.policies.forward.blocks import Block, Products, after, blocks_of, norm_weight, projected
from upslope.policies.forward.embedding import embedded
from upslope.policies.forward.packing import Layout


def hidden_states(
    body: Architecture, layout: Layout, dtype: torch.dtype, recompute: int = 0, known: Sequence[Products] | None = None
) -> Tensor:
    """What the head is given at the rows' own tokens ``[S_own, features]``, in float32 or better.

    Args:
        dtype: of the products.
        recompute: of so many layers keep no activations; the backward pass computes them again. They are the first: when their turn
            comes the others' have been freed.
        known: what each layer computed of these tokens with these weights before; it is not computed again.
    """
    x = embedded(body.stack.embed_tokens, layout.ids)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    rope, delta = rope_tables(body, layout), None
    last = len(body.layers) - 1
    for number, block in enumerate(blocks_of(body, dtype)):
        arguments = (body, block, x, delta, rope, layout, number == last, None if known is None else known[number])
        if number < recompute and torch.is_grad_enabled():
            x, delta = checkpoint(_layer, *arguments, use_reentrant=False)
        else:
            x, delta = _layer(*arguments)
    x = x if delta is None else x + delta
    if isinstance(body.stack.norm, nn.Identity):  # what a method has put there to look inside
        return x
    return F.rms_norm(x, x.shape[-1:], norm_weight(body, body.stack.norm), body.eps)


def rope_tables(body: Architecture, layout: Layout) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the packed tokens' places ``[S, 1, width]``."""
    positions = int(layout.places.max()) + 1 if len(layout.places) else 1
    dtype = torch.promote_types(body.head.weight.dtype, torch.float32)
    cos, sin = body.rotations(positions, layout.places.device, dtype)
    return cos[layout.places].unsqueeze(1), sin[layout.places].unsqueeze(1)


def prompt_memory(
    body: Architecture, blocks: Iterable[Block], embedded: Tensor, layout: Layout, kept: ActivationCache | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of packed prompts, layer by layer; of the last layer nothing else is computed.

    Args:
        embedded: the tokens' embeddings ``[S, features]``.
        kept: where what was computed is written down, on a CPU.
    """
    x = embedded.to(torch.promote_types(embedded.dtype, torch.float32))
    rope, found, delta = rope_tables(body, layout), [], None
    rotated_heads = body.heads + body.kv_heads
    for number, block in enumerate(blocks):
        x, packed = projected(body, block, x, delta, rope)
        found.append((packed[:, body.heads : rotated_heads], packed[:, rotated_heads:]))
        if not len(x):
            continue
        if number + 1 == len(body.layers):
            made: tuple[Tensor, ...] = (packed,)
        elif kept is None:
            x, rest = after(body, block, x, attend(packed, layout, body.heads, body.scale).flatten(1))
            delta = rest.delta
        else:
            attended = attention_cpu.attend(packed, layout, body.heads, body.scale)
            x, rest = after(body, block, x, attended.out.flatten(1))
            made, delta = Products(packed, attended, rest).tensors(), rest.delta
        if kept is not None:
            kept.write_prompts(number, layout.ids, made)
    return found


def _layer(
    body: Architecture, block: Block, x: Tensor, delta: Tensor | None, rope: tuple[Tensor, Tensor], layout: Layout, last: bool,
    known: Products | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One layer; the last one gives the rows' own tokens only."""
    heads, attended, rest = (None, None, None) if known is None else known
    x, packed = projected(body, block, x, delta, rope, heads)
    seen = attend(packed, layout, body.heads, body.scale, last, attended)
    x, rest = after(body, block, x[layout.shared :] if last else x, seen.flatten(1), rest)
    return x, rest.delta
