"""Attention of packed tokens, with each prompt's keys and values computed once for all rows that continue it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies.forward import attention_cpu
from upslope.policies.forward.attention_cpu import Attended
from upslope.policies.forward.packing import Layout, pad, unpad
from upslope.policies.forward.triton import launch


def attend(
    packed: Tensor, layout: Layout, heads: int, scale: float, rows_only: bool = False, known: Attended | None = None
) -> Tensor:
    """All packed tokens: prompts on themselves, rows on their prompts and on those of their own before them.

    Args:
        packed: queries, keys and values ``[S, heads + 2 * kv_heads, width]``; the prompts' tokens are the first.
        rows_only: only the rows' own tokens ask.
        known: the result with its logsumexps ``[S, heads]``, if it was computed before (on a CPU).

    Returns:
        ``[S, heads, width]``, or of the rows' own tokens.
    """
    if packed.device.type != "cpu" and not launch.helps(packed):
        return _by_torch(packed, layout, heads, scale, rows_only)
    if torch.is_grad_enabled():
        return _Attend.apply(packed, layout, heads, scale, rows_only, *(known or (None, None)))
    return _kernels(packed).attend(packed, layout, heads, scale, rows_only)[0] if known is None else known.out


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        packed: Tensor,
        layout: Layout,
        heads: int,
        scale: float,
        rows_only: bool,
        out: Tensor | None,
        logsumexp: Tensor | None,
    ):
        if out is None:
            out, logsumexp = _kernels(packed).attend(packed, layout, heads, scale, rows_only)
        ctx.save_for_backward(packed, out, logsumexp)
        ctx.how = (layout, heads, scale, rows_only)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        packed, out, logsumexp = ctx.saved_tensors
        return _kernels(packed).attend_back(packed, out, grad, logsumexp, *ctx.how), None, None, None, None, None, None


def _kernels(packed: Tensor) -> Any:
    return launch if launch.helps(packed) else attention_cpu


def _by_torch(packed: Tensor, layout: Layout, heads: int, scale: float, rows_only: bool) -> Tensor:
    """The same on any device and by torch alone, with each prompt copied to its rows."""
    shared, kv, device = layout.shared, (packed.shape[1] - heads) // 2, packed.device
    prompts = pad(packed[:shared], layout.prompts, layout.prompt_places).transpose(1, 2)
    found = []
    if shared and not rows_only:
        q, k, v = prompts.split([heads, kv, kv], 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        found.append(unpad(out.transpose(1, 2), layout.prompt_places))
    if layout.owns:
        which, lengths = (torch.tensor(numbers, device=device) for numbers in (layout.which, layout.prompts))
        q, *own = layout.rows(packed[shared:]).transpose(1, 2).split([heads, kv, kv], 1)
        there = prompts[which].split([heads, kv, kv], 1)[1:]
        k, v = (torch.cat(both, 2) for both in zip(there, own, strict=True))
        steps = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=device).tril()
        seen = torch.arange(prompts.shape[2], device=device) < lengths[which].unsqueeze(1)
        shown = torch.cat([seen.unsqueeze(1).expand(-1, len(steps), -1), steps.expand(len(q), -1, -1)], 2).unsqueeze(1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=shown, scale=scale, enable_gqa=True)
        found.append(layout.packed(out.transpose(1, 2)))
    return torch.cat(found)
