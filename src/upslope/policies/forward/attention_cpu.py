"""Attention of packed tokens on a CPU, forward and backward: what the kernels do on a GPU, by torch's flash attention.

A short prompt is copied to each of its rows: one look at all keys costs less than two. At a longer one all rows of a group look
together, each row at itself apart, and the two softmaxes are made one by their logsumexps; the backward pass of each is that of a
softmax over all keys, given the whole's result and logsumexp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from upslope.policies.forward.packing import Layout, pad, unpad
from upslope.runtime import torch_private

COPIED = 16
"""Prompts up to so long are copied."""


class Attended(NamedTuple):
    """What attention gave, and the logsumexp it divided by."""

    out: Tensor
    logsumexp: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Attended:
        return Attended(change(self.out), change(self.logsumexp))


# -- of packed tokens --------------------------------------------------------------------------------------------------------


def attend(packed: Tensor, layout: Layout, heads: int, scale: float, rows_only: bool = False) -> Attended:
    """``[S, heads, width]`` of packed queries, keys and values, or of the rows' own alone; logsumexps ``[S, heads]``."""
    prompts, found = _prompts(packed, layout, heads), []
    if not rows_only and layout.shared:
        q, k, v = prompts
        repeat = q.shape[1] // k.shape[1]
        # Padding stands behind the tokens, where a causal mask hides it already.
        own = attend_with_logsumexp(q, _repeated(k, repeat), _repeated(v, repeat), scale, causal=True)
        found.append(own.map(lambda x: unpad(x.transpose(1, 2), layout.prompt_places)))
    if layout.owns:
        rows = _rows(packed, layout, heads)
        parts = [_look(part.of(rows, prompts), part.lengths, scale) for part in _equal_groups(layout)]
        found.append(Attended(*_joined(layout, parts)).map(lambda x: layout.packed(x.transpose(1, 2))))
    return found[0] if len(found) == 1 else Attended(*map(torch.cat, zip(*found, strict=True)))


def attend_back(
    packed: Tensor, out: Tensor, grad: Tensor, logsumexp: Tensor, layout: Layout, heads: int, scale: float, rows_only: bool
) -> Tensor:
    """The gradient of ``packed``."""
    shared, kv, whole = layout.shared, (packed.shape[1] - heads) // 2, _Result(grad, out, logsumexp)
    to_packed = torch.empty_like(packed)
    to_packed[:shared] = 0.0
    prompts = _prompts(packed, layout, heads)
    if layout.owns:
        rows, first = _rows(packed, layout, heads), 0 if rows_only else shared
        result = whole.map(lambda x: layout.rows(x[first:]).transpose(1, 2))
        parts = [
            _look_back(_Result(*(x[part.rows] for x in result)), part.of(rows, prompts), part.lengths, scale)
            for part in _equal_groups(layout)
        ]
        to_rows = _joined(layout, [part[:3] for part in parts])
        for target, found in zip(to_packed[shared:].split([heads, kv, kv], 1), to_rows, strict=True):
            target.copy_(layout.packed(found.transpose(1, 2)))
        if shared:
            to_prompts = _joined(layout, [part[3:] for part in parts], prompts=True)
            for target, found in zip(to_packed[:shared, heads:].split([kv, kv], 1), to_prompts, strict=True):
                target.copy_(unpad(found.transpose(1, 2), layout.prompt_places))
    if not rows_only and shared:
        result = whole.map(lambda x: pad(x[:shared], layout.prompts, layout.prompt_places).transpose(1, 2))
        for target, found in zip(to_packed[:shared].split([heads, kv, kv], 1), _back(result, *prompts, scale), strict=True):
            target.add_(unpad(found.transpose(1, 2), layout.prompt_places))
    return to_packed


class _Heads(NamedTuple):
    """Queries, keys and values ``[B, heads, T, width]``."""

    q: Tensor
    k: Tensor
    v: Tensor


def _rows(packed: Tensor, layout: Layout, heads: int) -> _Heads:
    """Of the rows' own tokens."""
    kv = (packed.shape[1] - heads) // 2
    return _Heads(*(x.transpose(1, 2) for x in layout.rows(packed[layout.shared :]).split([heads, kv, kv], 2)))


def _prompts(packed: Tensor, layout: Layout, heads: int) -> _Heads:
    """Of the prompts' tokens."""
    kv = (packed.shape[1] - heads) // 2
    padded = pad(packed[: layout.shared], layout.prompts, layout.prompt_places)
    return _Heads(*(x.transpose(1, 2) for x in padded.split([heads, kv, kv], 2)))


class _Result(NamedTuple):
    """What attention gave, as a backward pass needs it."""

    grad: Tensor
    out: Tensor
    logsumexp: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> _Result:
        return _Result(*map(change, self))


class _Part(NamedTuple):
    """Groups with equally many rows."""

    rows: Any
    groups: Any
    lengths: list[int]
    """Of their prompts."""

    def of(self, rows: _Heads, prompts: _Heads) -> _Given:
        return _Given(*(x[self.rows] for x in rows), *(x[self.groups] for x in prompts[1:]))


def _equal_groups(layout: Layout) -> Iterator[_Part]:
    if len(set(layout.group_sizes)) == 1:
        yield _Part(slice(None), slice(None), layout.prompts)
        return
    sizes, which = torch.tensor(layout.group_sizes), torch.tensor(layout.which)
    for size in sizes[sizes > 0].unique().tolist():
        groups = (sizes == size).nonzero().squeeze(1)
        yield _Part(torch.isin(which, groups).nonzero().squeeze(1), groups, [layout.prompts[group] for group in groups.tolist()])


def _joined(layout: Layout, parts: Sequence[Sequence[Tensor]], prompts: bool = False) -> Sequence[Tensor]:
    """What came of parts, several ``[N of the part, ...]`` each (or of its groups), in the order of the layout."""
    if len(parts) == 1:
        return parts[0]
    order = torch.cat([part.groups if prompts else part.rows for part in _equal_groups(layout)]).argsort()
    return [torch.cat(several)[order] for several in zip(*parts, strict=True)]


# -- of equal groups -----------------------------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """Rows ``[G * n, heads, T, width]`` and their prompts ``[G, kv_heads, P, width]``, padded behind their lengths."""

    q: Tensor
    k: Tensor
    v: Tensor
    prompt_k: Tensor
    prompt_v: Tensor


def _look(given: _Given, lengths: list[int], scale: float) -> Attended:
    """Rows on themselves and on their prompts."""
    q, k, v, prompt_k, prompt_v = given
    fold = _Fold(q, prompt_k)
    if prompt_k.shape[2] <= COPIED:
        keys, values, mask = _with_prompts(given, lengths)
        return attend_with_logsumexp(
            q, _repeated(keys, fold.repeat), _repeated(values, fold.repeat), scale, mask, causal=mask is None
        )
    own = attend_with_logsumexp(q, _repeated(k, fold.repeat), _repeated(v, fold.repeat), scale, causal=True)
    return merged(own, attend_some(fold.grouped(q), prompt_k, prompt_v, scale, _absent(prompt_k, lengths)).map(fold.back))


def _look_back(result: _Result, given: _Given, lengths: list[int], scale: float) -> list[Tensor]:
    """The grads of what `_look` was given."""
    q, k, v, prompt_k, prompt_v = given
    fold, prompt = _Fold(q, prompt_k), prompt_k.shape[2]
    if prompt <= COPIED:
        keys, values, mask = _with_prompts(given, lengths)
        to_q, *to_both = _back(result, q, keys, values, scale, mask, causal=mask is None)
        to_prompt = [x[:, :, :prompt].unflatten(0, (-1, fold.n)).sum(1) for x in to_both]
        return [to_q, *(x[:, :, prompt:] for x in to_both), *to_prompt]
    to_q, to_k, to_v = _back(result, q, k, v, scale)
    absent = _absent(prompt_k, lengths)
    to_grouped, *to_prompt = _back(result.map(fold.grouped), fold.grouped(q), prompt_k, prompt_v, scale, absent, causal=False)
    return [to_q + fold.back(to_grouped), to_k, to_v, *to_prompt]


def _with_prompts(given: _Given, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values with the prompts' before them, and what to add to scores; None: nothing but a causal mask."""
    q, k, v, prompt_k, prompt_v = given
    prompt, steps = prompt_k.shape[2], q.shape[2]
    if not prompt:
        return k, v, None
    n = len(q) // len(prompt_k)
    keys, values = (torch.cat([there.repeat_interleave(n, 0), own], 2) for there, own in ((prompt_k, k), (prompt_v, v)))
    hidden = torch.ones(steps, prompt + steps, dtype=torch.bool).triu(prompt + 1).view(1, 1, steps, -1)
    if min(lengths) < prompt:
        beyond = torch.arange(prompt + steps) >= torch.tensor(lengths).repeat_interleave(n).view(-1, 1, 1, 1)
        beyond[..., prompt:] = False
        hidden = hidden | beyond
    return keys, values, hiding(hidden, q.dtype)


def _absent(prompt_k: Tensor, lengths: list[int]) -> Tensor | None:
    """What hides the padding of prompts."""
    longest = prompt_k.shape[2]
    if min(lengths) == longest:
        return None
    return hiding(torch.arange(longest) >= torch.tensor(lengths).view(-1, 1, 1, 1), prompt_k.dtype)


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


# -- of plain batches ------------------------------------------------------------------------------------------------------------


def attend_with_logsumexp(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, causal: bool = False
) -> Attended:
    """Attention ``[B, heads, T, width]``, and its logsumexps ``[B, heads, T]``; ``mask`` is added to the scores."""
    return Attended(*torch_private.flash_attention_for_cpu(q, k, v, is_causal=causal, attn_mask=mask, scale=scale))


def attend_some(q: Tensor, k: Tensor, v: Tensor, scale: float, absent: Tensor | None) -> Attended:
    """The same where keys ``[B, 1, 1, keys]`` may be absent. Whoever lacks the first has none; the logsumexp is then zero."""
    out, logsumexp = attend_with_logsumexp(q, k, v, scale, absent)
    return Attended(out, logsumexp if absent is None else logsumexp.masked_fill(absent[..., 0].isinf(), -torch.inf))


def merged(one: Attended, other: Attended) -> Attended:
    """Attention over two sets of keys, from that over each."""
    share = torch.sigmoid(other.logsumexp - one.logsumexp).unsqueeze(-1)
    return Attended(torch.lerp(one.out, other.out, share.to(one.out.dtype)), torch.logaddexp(one.logsumexp, other.logsumexp))


def _back(
    result: _Result, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, causal: bool = True
) -> list[Tensor]:
    """The grads of queries, keys and values."""
    repeat = q.shape[1] // k.shape[1]
    keys, values = _repeated(k, repeat), _repeated(v, repeat)
    back = torch_private.flash_attention_for_cpu_backward
    to_q, *to_both = back(result.grad, q, keys, values, result.out, result.logsumexp, 0.0, causal, attn_mask=mask, scale=scale)
    return [to_q, *(x if repeat == 1 else x.unflatten(1, (-1, repeat)).sum(2) for x in to_both)]


def hiding(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What to add to scores so that some keys are not seen."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def _repeated(x: Tensor, repeat: int) -> Tensor:
    """Keys or values ``[B, kv_heads, ...]``, once for each query head."""
    return x if repeat == 1 else x.repeat_interleave(repeat, 1)
