"""Attention of packed tokens, with each prompt's keys and values computed once for all rows that continue it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies import fused
from upslope.policies.layout import Layout

COPIED = 16
"""Prompts up to so long are copied to each of their rows on a CPU too: one look at all keys costs less than two."""


def attend_with_mass(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, causal: bool = False):
    """Attention ``[B, heads, T, width]`` on a CPU, and the log of the mass it was divided by ``[B, heads, T]``.

    Args:
        mask: added to the scores ``[B, 1, 1, keys]``. Whoever cannot see the first key sees none; their mass is zero.
    """
    out, mass = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=causal, attn_mask=mask, scale=scale)
    return out, mass if mask is None else mass.masked_fill(mask[..., 0].isinf(), -torch.inf)


def attend(packed: Tensor, layout: Layout, heads: int, scale: float, rows_only: bool = False) -> Tensor:
    """All packed tokens: prompts on themselves, rows on their prompts and on those of their own before them.

    Args:
        packed: queries, keys and values ``[S, heads + 2 * kv_heads, width]``; the prompts' tokens are the first.
        rows_only: only the rows' own tokens ask.

    Returns:
        ``[S, heads, width]``, or of the rows' own tokens.
    """
    if fused.helps(packed):
        if torch.is_grad_enabled():
            return _Fused.apply(packed, layout, heads, scale, rows_only)
        return fused.attend(packed, layout, heads, scale, rows_only)[0]
    shared, kv = layout.shared, (packed.shape[1] - heads) // 2
    q, k, v = packed.split([heads, kv, kv], 1)
    if not layout.owns:
        return _attend_prompts(q, k, v, layout, scale)
    rows = _attend_rows(q[shared:], k, v, layout, scale)
    if rows_only or not shared:
        return rows
    return torch.cat([_attend_prompts(q[:shared], k[:shared], v[:shared], layout, scale), rows])


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, layout: Layout, heads: int, scale: float, rows_only: bool):
        out, masses = fused.attend(packed, layout, heads, scale, rows_only)
        ctx.save_for_backward(packed, out, masses)
        ctx.how = (layout, heads, scale, rows_only)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor):  # type: ignore[override]
        packed, out, masses = ctx.saved_tensors
        return fused.attend_back(packed, out, slope, masses, *ctx.how), None, None, None, None


def _attend_rows(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float) -> Tensor:
    """Each row's own tokens ``q [S_own, heads, width]`` on its prompt and on those before them."""
    shared = layout.shared
    q, own_k, own_v = (pad(x, layout.owns, layout.own_places) for x in (q, k[shared:], v[shared:]))
    prompt_k, prompt_v = (pad(x[:shared], layout.prompts, layout.prompt_places) for x in (k, v))
    few = 0 < prompt_k.shape[1] <= COPIED
    attend = _merged if q.device.type == "cpu" and not few else _copied
    if len(set(layout.group_sizes)) == 1:
        out = attend(q, own_k, own_v, prompt_k, prompt_v, layout.prompts, scale)
    else:
        out = _by_size(attend, q, own_k, own_v, prompt_k, prompt_v, layout, scale)
    return unpad(out, layout.own_places)


def _attend_prompts(q: Tensor, k: Tensor, v: Tensor, layout: Layout, scale: float) -> Tensor:
    # Padding stands behind the tokens, where a causal mask hides it already.
    q, k, v = (pad(x, layout.prompts, layout.prompt_places).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return unpad(out.transpose(1, 2), layout.prompt_places)


def _by_size(attend, q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, layout: Layout, scale: float) -> Tensor:
    """Groups of one size at a time."""
    sizes = torch.tensor(layout.group_sizes)
    which = torch.tensor(layout.which)
    found, order = [], []
    for size in sizes.unique().tolist():
        groups = (sizes == size).nonzero().squeeze(1)
        rows = torch.isin(which, groups).nonzero().squeeze(1)
        lengths = [layout.prompts[group] for group in groups.tolist()]
        at, of = rows.to(q.device), groups.to(q.device)
        found.append(attend(q[at], k[at], v[at], prompt_k[of], prompt_v[of], lengths, scale))
        order.append(rows)
    return torch.cat(found)[torch.cat(order).argsort().to(q.device)]


def _merged(q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, lengths: list[int], scale: float) -> Tensor:
    """Equal groups. A row looks at itself, and all rows of a group together at their prompt; two softmaxes are made one.

    Args:
        q: ``[G * n, T, heads, width]``; k, v: ``[G * n, T, kv_heads, width]``; prompts ``[G, P, kv_heads, width]``.
        lengths: of the prompts, padded to ``P``.
    """
    q, k, v, prompt_k, prompt_v = (x.transpose(1, 2) for x in (q, k, v, prompt_k, prompt_v))
    if not prompt_k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)
    absent = None
    if min(lengths) < prompt_k.shape[2]:
        absent = hiding(torch.arange(prompt_k.shape[2]) >= torch.tensor(lengths).view(-1, 1, 1, 1), q.dtype)
    return _Merged.apply(q, k, v, prompt_k, prompt_v, absent, scale).transpose(1, 2)


class _Merged(torch.autograd.Function):
    """Attention over two sets of keys from that over each: outputs are mixed by the logs of their masses.

    The backward pass of each is that of a softmax over all keys, given the whole's output and mass.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, absent: Tensor | None, scale: float):
        fold = _Fold(q, prompt_k)
        own, own_mass = attend_with_mass(q, fold.repeated(k), fold.repeated(v), scale, causal=True)
        there, mass = attend_with_mass(fold.grouped(q), prompt_k, prompt_v, scale, absent)
        there, mass = fold.back(there), fold.back(mass)
        out = torch.lerp(own, there, torch.sigmoid(mass - own_mass).unsqueeze(-1).to(own.dtype))
        ctx.save_for_backward(q, k, v, prompt_k, prompt_v, absent, out, torch.logaddexp(mass, own_mass))
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor):  # type: ignore[override]
        q, k, v, prompt_k, prompt_v, absent, out, mass = ctx.saved_tensors
        fold, slope, scale = _Fold(q, prompt_k), slope.contiguous(), ctx.scale
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        to_q, to_k, to_v = backward(slope, q, fold.repeated(k), fold.repeated(v), out, mass, 0.0, True, scale=scale)
        grouped = [fold.grouped(x) for x in (slope, q, out, mass)]
        to_grouped, to_prompt_k, to_prompt_v = backward(
            grouped[0], grouped[1], prompt_k, prompt_v, grouped[2], grouped[3], 0.0, False, attn_mask=absent, scale=scale
        )
        return to_q + fold.back(to_grouped), fold.summed(to_k), fold.summed(to_v), to_prompt_k, to_prompt_v, None, None


class _Fold:
    """How rows ``[G * n, heads, T, ...]`` become the queries of their prompts ``[G, kv_heads, n * repeat * T, ...]``, and back."""

    def __init__(self, q: Tensor, prompt_k: Tensor):
        self.rows, self.heads, self.steps = q.shape[:3]
        self.groups, self.kv_heads = prompt_k.shape[:2]
        self.n, self.repeat = self.rows // self.groups, self.heads // self.kv_heads

    def grouped(self, x: Tensor) -> Tensor:
        x = x.reshape(self.groups, self.n, self.kv_heads, self.repeat * self.steps, *x.shape[3:]).transpose(1, 2)
        return x.reshape(self.groups, self.kv_heads, -1, *x.shape[4:])

    def back(self, x: Tensor) -> Tensor:
        x = x.reshape(self.groups, self.kv_heads, self.n, self.repeat * self.steps, *x.shape[3:]).transpose(1, 2)
        return x.reshape(self.rows, self.heads, self.steps, *x.shape[4:])

    def repeated(self, x: Tensor) -> Tensor:
        """Keys or values, once for each query head."""
        return x if self.repeat == 1 else x.repeat_interleave(self.repeat, 1)

    def summed(self, x: Tensor) -> Tensor:
        return x if self.repeat == 1 else x.unflatten(1, (self.kv_heads, self.repeat)).sum(2)


def _copied(q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor, lengths: list[int], scale: float) -> Tensor:
    """The same on any device, with the prompt copied to each row."""
    n, steps, prompt = len(q) // len(prompt_k), q.shape[1], prompt_k.shape[1]
    k, v = (torch.cat([there.repeat_interleave(n, 0), own], 1) for there, own in ((prompt_k, k), (prompt_v, v)))
    own = torch.ones(steps, steps, dtype=torch.bool, device=q.device).tril()
    there = torch.arange(prompt, device=q.device) < torch.tensor(lengths, device=q.device).repeat_interleave(n).unsqueeze(1)
    mask = torch.cat([there.unsqueeze(1).expand(-1, steps, -1), own.expand(len(q), -1, -1)], 2).unsqueeze(1)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True).transpose(1, 2)


def hiding(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What to add to scores so that some keys are not seen."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def pad(packed: Tensor, lengths: list[int], places: Tensor | None) -> Tensor:
    """Packed tokens ``[S, ...]`` as rows ``[N, longest, ...]``, zero behind their ends."""
    longest = max(lengths, default=0)
    if places is None:
        return packed.reshape(len(lengths), longest, *packed.shape[1:])
    blank = packed.new_zeros(len(lengths) * longest, *packed.shape[1:])
    return blank.index_copy(0, places, packed).view(len(lengths), longest, *packed.shape[1:])


def unpad(rows: Tensor, places: Tensor | None) -> Tensor:
    flat = rows.flatten(0, 1)
    return flat if places is None else flat[places]
