"""Triton kernels of attention over packed tokens in which rows share their prompts.

A *span* is a prompt or a row: where its own tokens begin and how many they are, the same of what stands before it (a row's prompt;
nothing, for a prompt), and the same of what looks back at it (all rows of a prompt, which stand together; nothing, for a row). Keys
and values are read where they lie, so a prompt is never copied. Its gradients are sums over its rows: long ones are shared among
programs, whose sums are added in a fixed order.

A program has ``BLOCK`` tokens of its own and walks the others ``OTHER`` at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(base, first, at, limit, STRIDE: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr):
    """Some tokens' features, zero behind the limit."""
    feature = tl.arange(0, WIDE)
    shown = (at < limit)[:, None] & (feature < W)[None, :]
    return tl.load(base + (first + at).to(tl.int64)[:, None] * STRIDE + feature[None, :], shown, 0.0)


@triton.jit
def _keep(base, first, at, limit, found, STRIDE: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr):
    feature = tl.arange(0, WIDE)
    shown = (at < limit)[:, None] & (feature < W)[None, :]
    target = base + (first + at).to(tl.int64)[:, None] * STRIDE + feature[None, :]
    tl.store(target, found.to(base.dtype.element_ty), shown)


@triton.jit
def _more(q, k, v, shown, scale, best, total, found, PRECISION: tl.constexpr):
    """Further keys and values for queries that have seen some."""
    score = tl.where(shown, tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale, float("-inf"))
    top = tl.maximum(best, tl.max(score, 1))
    shrink = tl.exp(best - top)
    weight = tl.exp(score - top[:, None])
    found = found * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
    return top, total * shrink + tl.sum(weight, 1), found


@triton.jit
def attend(
    packed, out, logsumexps, blocks, spans, shift, scale,
    H: tl.constexpr, KV: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """Some queries of a span and head on all they see, and the logsumexp; ``out`` begins with token ``shift``."""
    STRIDE: tl.constexpr = (H + 2 * KV) * W
    head = tl.program_id(1)
    entry = blocks + 2 * tl.program_id(0)
    span, begin = spans + 6 * tl.load(entry), tl.load(entry + 1)
    first, length, before, many = tl.load(span), tl.load(span + 1), tl.load(span + 2), tl.load(span + 3)
    keys = packed + (H + head // (H // KV)) * W
    values = keys + KV * W
    ask = begin + tl.arange(0, BLOCK)
    q = _tile(packed + head * W, first, ask, length, STRIDE, W, WIDE)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    found = tl.zeros((BLOCK, WIDE), tl.float32)
    for there in range(0, many, OTHER):
        at = there + tl.arange(0, OTHER)
        k, v = _tile(keys, before, at, many, STRIDE, W, WIDE), _tile(values, before, at, many, STRIDE, W, WIDE)
        best, total, found = _more(q, k, v, (at < many)[None, :], scale, best, total, found, PRECISION)
    for there in range(0, tl.minimum(begin + BLOCK, length), OTHER):
        at = there + tl.arange(0, OTHER)
        k, v = _tile(keys, first, at, length, STRIDE, W, WIDE), _tile(values, first, at, length, STRIDE, W, WIDE)
        best, total, found = _more(q, k, v, at[None, :] <= ask[:, None], scale, best, total, found, PRECISION)
    _keep(out + head * W, first - shift, ask, length, found / total[:, None], H * W, W, WIDE)
    tl.store(logsumexps + (first + ask).to(tl.int64) * H + head, best + tl.log(total), ask < length)


@triton.jit
def _score_grad(q, grad, logsumexp, mean, k, v, shown, scale, PRECISION: tl.constexpr):
    """What queries ``[A, W]`` gave to keys ``[B, W]``, and the gradient of their scores, both ``[A, B]``."""
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    weight = tl.where(shown, tl.exp(score - logsumexp[:, None]), 0.0)
    back = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    return weight, weight * (back - mean[:, None]) * scale


@triton.jit
def attend_back_queries(
    packed, out, grads, logsumexps, means, to_packed, blocks, spans, shift, scale,
    H: tl.constexpr, KV: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """Gradients of some queries of a span and head; keeps ``means``, the products of outputs and their grads, for the keys."""
    STRIDE: tl.constexpr = (H + 2 * KV) * W
    head = tl.program_id(1)
    entry = blocks + 2 * tl.program_id(0)
    span, begin = spans + 6 * tl.load(entry), tl.load(entry + 1)
    first, length, before, many = tl.load(span), tl.load(span + 1), tl.load(span + 2), tl.load(span + 3)
    keys = packed + (H + head // (H // KV)) * W
    values = keys + KV * W
    ask = begin + tl.arange(0, BLOCK)
    q = _tile(packed + head * W, first, ask, length, STRIDE, W, WIDE)
    grad = _tile(grads + head * W, first - shift, ask, length, H * W, W, WIDE)
    mean = tl.sum(grad.to(tl.float32) * _tile(out + head * W, first - shift, ask, length, H * W, W, WIDE).to(tl.float32), 1)
    place = (first + ask).to(tl.int64) * H + head
    tl.store(means + place, mean, ask < length)
    logsumexp = tl.load(logsumexps + place, ask < length, 0.0)
    to_q = tl.zeros((BLOCK, WIDE), tl.float32)
    for there in range(0, many, OTHER):
        at = there + tl.arange(0, OTHER)
        k, v = _tile(keys, before, at, many, STRIDE, W, WIDE), _tile(values, before, at, many, STRIDE, W, WIDE)
        _, to_score = _score_grad(q, grad, logsumexp, mean, k, v, (at < many)[None, :], scale, PRECISION)
        to_q += tl.dot(to_score.to(k.dtype), k, input_precision=PRECISION)
    for there in range(0, tl.minimum(begin + BLOCK, length), OTHER):
        at = there + tl.arange(0, OTHER)
        k, v = _tile(keys, first, at, length, STRIDE, W, WIDE), _tile(values, first, at, length, STRIDE, W, WIDE)
        _, to_score = _score_grad(q, grad, logsumexp, mean, k, v, at[None, :] <= ask[:, None], scale, PRECISION)
        to_q += tl.dot(to_score.to(k.dtype), k, input_precision=PRECISION)
    _keep(to_packed + head * W, first, ask, length, to_q, STRIDE, W, WIDE)


@triton.jit
def attend_back_keys(
    packed, grads, logsumexps, means, to_packed, sums, work, spans, shift, scale,
    H: tl.constexpr, KV: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    """Gradients of some keys and values of a span and key head, from the span's own queries and from some that look back at it.

    ``work`` says from which: see `Layout.back_work`. Where others have a share, this one goes to a place of ``sums``.
    """
    STRIDE: tl.constexpr = (H + 2 * KV) * W
    kv = tl.program_id(1)
    entry = work + 6 * tl.program_id(0)
    span, begin, own = spans + 6 * tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    since, until, place_of_sum = tl.load(entry + 3), tl.load(entry + 4), tl.load(entry + 5)
    first, length, behind = tl.load(span), tl.load(span + 1), tl.load(span + 4)
    at = begin + tl.arange(0, BLOCK)
    k = _tile(packed + (H + kv) * W, first, at, length, STRIDE, W, WIDE)
    v = _tile(packed + (H + KV + kv) * W, first, at, length, STRIDE, W, WIDE)
    to_k = tl.zeros((BLOCK, WIDE), tl.float32)
    to_v = tl.zeros((BLOCK, WIDE), tl.float32)
    asked = tl.where((own > 0) & (first >= shift), length, 0)  # tokens before the shift asked nothing
    for head in range(kv * (H // KV), (kv + 1) * (H // KV)):
        for there in range(begin, asked, OTHER):
            ask = there + tl.arange(0, OTHER)
            shown = (at[None, :] <= ask[:, None]) & (ask < length)[:, None]
            q = _tile(packed + head * W, first, ask, length, STRIDE, W, WIDE)
            grad = _tile(grads + head * W, first - shift, ask, length, H * W, W, WIDE)
            place = (first + ask).to(tl.int64) * H + head
            logsumexp, mean = tl.load(logsumexps + place, ask < length, 0.0), tl.load(means + place, ask < length, 0.0)
            weight, to_score = _score_grad(q, grad, logsumexp, mean, k, v, shown, scale, PRECISION)
            to_v += tl.dot(tl.trans(weight.to(grad.dtype)), grad, input_precision=PRECISION)
            to_k += tl.dot(tl.trans(to_score.to(q.dtype)), q, input_precision=PRECISION)
        for there in range(since, until, OTHER):
            ask = there + tl.arange(0, OTHER)
            q = _tile(packed + head * W, behind, ask, until, STRIDE, W, WIDE)
            grad = _tile(grads + head * W, behind - shift, ask, until, H * W, W, WIDE)
            place = (behind + ask).to(tl.int64) * H + head
            logsumexp, mean = tl.load(logsumexps + place, ask < until, 0.0), tl.load(means + place, ask < until, 0.0)
            weight, to_score = _score_grad(q, grad, logsumexp, mean, k, v, (ask < until)[:, None], scale, PRECISION)
            to_v += tl.dot(tl.trans(weight.to(grad.dtype)), grad, input_precision=PRECISION)
            to_k += tl.dot(tl.trans(to_score.to(q.dtype)), q, input_precision=PRECISION)
    if place_of_sum < 0:
        _keep(to_packed + (H + kv) * W, first, at, length, to_k, STRIDE, W, WIDE)
        _keep(to_packed + (H + KV + kv) * W, first, at, length, to_v, STRIDE, W, WIDE)
    else:
        target = (place_of_sum * KV + kv) * 2 * BLOCK
        _keep(sums, target, tl.arange(0, BLOCK), BLOCK, to_k, W, W, WIDE)
        _keep(sums, target + BLOCK, tl.arange(0, BLOCK), BLOCK, to_v, W, W, WIDE)


@triton.jit
def add_shares(
    sums, to_packed, shared, spans,
    H: tl.constexpr, KV: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What several programs found of the gradients of some keys and values, in their order; one program a block and key head."""
    STRIDE: tl.constexpr = (H + 2 * KV) * W
    kv = tl.program_id(1)
    entry = shared + 4 * tl.program_id(0)
    span, begin, place, count = spans + 6 * tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    first, length, at = tl.load(span), tl.load(span + 1), tl.arange(0, BLOCK)
    to_k = tl.zeros((BLOCK, WIDE), tl.float32)
    to_v = tl.zeros((BLOCK, WIDE), tl.float32)
    for number in range(count):
        source = ((place + number) * KV + kv) * 2 * BLOCK
        to_k += _tile(sums, source, at, BLOCK, W, W, WIDE)
        to_v += _tile(sums, source + BLOCK, at, BLOCK, W, W, WIDE)
    _keep(to_packed + (H + kv) * W, first, begin + at, length, to_k, STRIDE, W, WIDE)
    _keep(to_packed + (H + KV + kv) * W, first, begin + at, length, to_v, STRIDE, W, WIDE)
