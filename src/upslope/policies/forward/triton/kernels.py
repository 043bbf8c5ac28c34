"""Triton kernels of a decoder layer, its norms, its rotations and its gate, forward and backward.

What they save is trips to memory and launches. Each does what the plain torch beside its caller does (`forward.layer_ops`).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def after_the_one_before(EARLY: tl.constexpr):
    """Where a kernel may be launched before the one before it has ended: lets the next one do the same, then waits for that end.

    Every kernel of a step of decoding does so before it touches memory, so that what earlier ones wrote is there too.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def add_norm(x, delta, weight, total, seen, eps, D: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    """``x + delta`` in float32, and its norm in the precision of products; one program a row."""
    at = tl.arange(0, BLOCK)
    inside = at < D
    place = tl.program_id(0).to(tl.int64) * D + at
    value = tl.load(x + place, inside, 0.0)
    if ADD:
        value += tl.load(delta + place, inside, 0.0).to(tl.float32)
        tl.store(total + place, value, inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / D + eps)
    tl.store(seen + place, (value * scale * tl.load(weight + at, inside, 0.0)).to(seen.dtype.element_ty), inside)


@triton.jit
def store_fp8(value, inside, codes, scale):
    """A row as codes of e4m3 and their scale: `upslope.policies.forward.fp8.quantize`."""
    top = tl.maximum(tl.max(tl.abs(tl.where(inside, value, 0.0))), 1e-30)
    tl.store(codes, (value * tl.div_rn(448.0, top)).to(codes.dtype.element_ty), inside)
    tl.store(scale, top * 0.002232142857142857)


@triton.jit
def quantize_fp8(x, codes, scales, F: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Rows in eight bits; one program a row."""
    after_the_one_before(EARLY)
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = at < F
    value = tl.load(x + row * F + at, inside, 0.0).to(tl.float32)
    store_fp8(value, inside, codes + row * F + at, scales + row)


@triton.jit
def norm_back(
    to_seen, total, weight, to_total, to_x, to_delta, seen, to_weight, eps, COUNT, EACH,
    D: tl.constexpr, BLOCK: tl.constexpr, DELTA: tl.constexpr,
):  # fmt: skip
    """The backward pass of `add_norm`, and its norm once more; one program some rows, the weight's gradient summed over them."""
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < D
    norm = tl.load(weight + at, inside, 0.0)
    sums = tl.zeros((BLOCK,), tl.float32)
    for row in range(program * EACH, tl.minimum((program + 1) * EACH, COUNT)):
        place = tl.cast(row, tl.int64) * D + at
        value = tl.load(total + place, inside, 0.0)
        grad = tl.load(to_seen + place, inside, 0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(value * value) / D + eps)
        even = value * scale
        tl.store(seen + place, (even * norm).to(seen.dtype.element_ty), inside)
        sums += grad * even
        grad *= norm
        grad = (grad - even * (tl.sum(grad * even) / D)) * scale + tl.load(to_total + place, inside, 0.0)
        tl.store(to_x + place, grad, inside)
        if DELTA:
            tl.store(to_delta + place, grad.to(to_delta.dtype.element_ty), inside)
    tl.store(to_weight + program * D + at, sums, inside)


@triton.jit
def rope(
    packed, out, cos, sin,
    HEADS: tl.constexpr, ROTATED: tl.constexpr, MANY: tl.constexpr, W: tl.constexpr, HALF: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """The first ``ROTATED`` heads of each token rotated by its position, or back, the others copied; one program a token."""
    token = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, MANY)[:, None], tl.arange(0, HALF)[None, :]
    real = at < W // 2
    inside = (head < HEADS) & real
    place = (token * HEADS + head) * W + at
    low = tl.load(packed + place, inside, 0.0).to(tl.float32)
    high = tl.load(packed + place + W // 2, inside, 0.0).to(tl.float32)
    angle = token * W + at
    cos_low, cos_high = tl.load(cos + angle, real, 0.0), tl.load(cos + angle + W // 2, real, 0.0)
    sin_low, sin_high = tl.load(sin + angle, real, 0.0), tl.load(sin + angle + W // 2, real, 0.0)
    if BACK:
        first, second = low * cos_low + high * sin_high, high * cos_high + low * sin_low
    else:
        first, second = low * cos_low + high * sin_low, high * cos_high + low * sin_high
    tl.store(out + place, tl.where(head < ROTATED, first, low).to(out.dtype.element_ty), inside)
    tl.store(out + place + W // 2, tl.where(head < ROTATED, second, high).to(out.dtype.element_ty), inside)


@triton.jit
def opened(gate, KIND: tl.constexpr):
    """The activation of a gate, and its derivative."""
    if KIND == "silu":
        share = tl.sigmoid(gate)
        value = gate * share
        grad = share * (1.0 + gate * (1.0 - share))
    elif KIND == "tanh":  # tanh(z) = 2 sigmoid(2 z) - 1
        share = tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
        value = gate * share
        grad = share * (1.0 + gate * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * gate * gate))
    else:
        share = 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
        value = gate * share
        grad = share + gate * 0.3989422804014327 * tl.exp(-0.5 * gate * gate)
    return value, grad


@triton.jit
def gated(both, product, F, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """``activation(gate) * up`` of ``[B, 2 F]``; one program some features of a row."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < F
    row = tl.program_id(0).to(tl.int64) * F
    gate = tl.load(both + 2 * row + at, inside, 0.0).to(tl.float32)
    up = tl.load(both + 2 * row + F + at, inside, 0.0).to(tl.float32)
    value, _ = opened(gate, KIND)
    tl.store(product + row + at, (value * up).to(product.dtype.element_ty), inside)


@triton.jit
def gated_back(both, to_product, to_both, product, F, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The backward pass of `gated`, and its product once more."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < F
    row = tl.program_id(0).to(tl.int64) * F
    gate = tl.load(both + 2 * row + at, inside, 0.0).to(tl.float32)
    up = tl.load(both + 2 * row + F + at, inside, 0.0).to(tl.float32)
    grad = tl.load(to_product + row + at, inside, 0.0).to(tl.float32)
    value, steep = opened(gate, KIND)
    tl.store(product + row + at, (value * up).to(product.dtype.element_ty), inside)
    tl.store(to_both + 2 * row + at, (grad * up * steep).to(to_both.dtype.element_ty), inside)
    tl.store(to_both + 2 * row + F + at, (grad * value).to(to_both.dtype.element_ty), inside)


@triton.jit
def chosen(
    logits, ids, temperature, logp, normaliser, entropy, V,
    TEMPERED: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The log-probability of a chosen token, the logsumexp it was divided by, the entropy; one program a row of logits."""
    row = tl.program_id(0).to(tl.int64)
    mine = logits + row * V
    cold = 1.0 / tl.load(temperature + row) if TEMPERED else 1.0
    tops = tl.full((BLOCK,), -1e30, tl.float32)
    exp_sums = tl.zeros((BLOCK,), tl.float32)
    moments = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(mine + at, at < V, -1e30) * cold
        top = tl.maximum(tops, x)
        shrink = tl.exp(tops - top)
        exps = tl.where(at < V, tl.exp(x - top), 0.0)
        if ENTROPY:
            moments = shrink * (moments + exp_sums * (tops - top)) + exps * (x - top)
        exp_sums = shrink * exp_sums + exps
        tops = top
    best = tl.max(tops)
    apart = tl.maximum(tops - best, -1e4)  # lanes that saw nothing have no sum
    shrink = tl.exp(apart)
    total = tl.sum(exp_sums * shrink)
    norm = tl.log(total)
    tl.store(normaliser + row, best + norm)
    tl.store(logp + row, tl.load(mine + tl.load(ids + row)) * cold - best - norm)
    if ENTROPY:
        tl.store(entropy + row, norm - tl.sum(shrink * (moments + exp_sums * apart)) / total)


@triton.jit
def chosen_back(
    logits, ids, temperature, normaliser, entropy, to_logp, to_entropy, grad, V,
    TEMPERED: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss's grad in the logits of a row, in the precision of products."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < V
    cold = 1.0 / tl.load(temperature + row) if TEMPERED else 1.0
    logp = tl.load(logits + row * V + at, inside, 0.0) * cold - tl.load(normaliser + row)
    share = tl.exp(logp)
    wanted = tl.load(to_logp + row)
    found = tl.where(at == tl.load(ids + row), wanted, 0.0) - share * wanted
    if ENTROPY:  # -p (log p + H)
        found -= share * (logp + tl.load(entropy + row)) * tl.load(to_entropy + row)
    tl.store(grad + row * V + at, (found * cold).to(grad.dtype.element_ty), inside)


@triton.jit
def _rounded(x, bits):
    """One of the two numbers of bfloat16 next to ``x``, the closer the more often, by 16 random bits."""
    whole = x.to(tl.int32, bitcast=True) + bits
    return (whole & -65536).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit
def adam(held, grads, means, squares, N, lr, beta1, beta2, correction, eps, decay, seed, BLOCK: tl.constexpr):
    """An update of AdamW with moments in bfloat16, which are rounded at random; one program some numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    grad = tl.load(grads + at, inside, 0.0).to(tl.float32)
    mean, square = tl.load(means + at, inside, 0.0).to(tl.float32), tl.load(squares + at, inside, 0.0).to(tl.float32)
    mean += (1 - beta1) * (grad - mean)
    square = beta2 * square + (1 - beta2) * grad * grad
    value = tl.load(held + at, inside, 0.0) * decay - lr * mean / (tl.sqrt(square) / correction + eps)
    bits = tl.randint(seed, at)
    tl.store(held + at, value, inside)
    tl.store(means + at, _rounded(mean, (bits & 65535).to(tl.int32)), inside)
    tl.store(squares + at, _rounded(square, (bits.to(tl.uint32, bitcast=True) >> 16).to(tl.int32)), inside)


@triton.jit
def _nearest(shares, table):
    """The codes of the values nearest to some shares of their blocks' scales: `upslope.learners.eight_bit_adam.quantize`."""
    code = tl.zeros(shares.shape, tl.int32)
    for bit in tl.static_range(8):  # the largest value that is not above
        further = code + (128 >> bit)
        code = tl.where(shares >= tl.load(table + further), further, code)
    return code + (shares - tl.load(table + code) >= tl.load(table + 256 + code)).to(tl.int32)


@triton.jit
def _dequantized(codes, scales, table, at, row, inside, there):
    """Numbers of some blocks, zero where there are none."""
    code = tl.load(codes + at, inside, 0).to(tl.int32)
    return tl.load(table + code, inside, 0.0) * tl.load(scales + row, there, 0.0)[:, None]


@triton.jit
def _quantize(x, codes, scales, table, at, row, inside, there):
    """Writes the codes and scales of some blocks."""
    scale = tl.maximum(tl.max(tl.abs(x), 1), 1e-12)
    shares = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))  # as exact as torch's, which codes hang on
    tl.store(codes + at, _nearest(shares, table).to(tl.uint8), inside)
    tl.store(scales + row, scale, there)


@triton.jit
def adam_8bit(
    held, grads, means, mean_scales, squares, square_scales, tables, N, lr, first, second, correction, eps, decay,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """An update of AdamW with moments in eight bits; one program some of their blocks."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside, there = at < N, row * BLOCK < N
    grad = tl.load(grads + at, inside, 0.0).to(tl.float32)
    mean = _dequantized(means, mean_scales, tables, at, row, inside, there)
    square = _dequantized(squares, square_scales, tables + 512, at, row, inside, there)
    mean += first * (grad - mean)
    square += second * (grad * grad - square)
    value = tl.load(held + at, inside, 0.0) * decay - lr * mean / (tl.sqrt(square) / correction + eps)
    tl.store(held + at, value, inside)
    _quantize(mean, means, mean_scales, tables, at, row, inside, there)
    _quantize(square, squares, square_scales, tables + 512, at, row, inside, there)


@triton.jit
def unpack_nf4(
    codes, scales, tops, offsets, places, values, scale_values, out,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Numbers in four bits (`upslope.policies.forward.nf4.dequantize`); one program some blocks of a group."""
    group = tl.program_id(0)
    first_block, first = tl.load(places + 3 * group), tl.load(places + 3 * group + 1)
    count = tl.load(places + 3 * group + 2)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    scale = tl.load(scale_values + tl.load(scales + first_block + block, block * BLOCK < count, 0).to(tl.int32))
    scale = (scale * tl.load(tops + group) + tl.load(offsets + group))[:, None]
    at = block[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
    pair = tl.load(codes + first_block * (BLOCK // 2) + at, 2 * at < count, 0).to(tl.int32)
    number = tl.interleave(tl.load(values + (pair >> 4)) * scale, tl.load(values + (pair & 15)) * scale)
    place = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + first + place, number.to(out.dtype.element_ty), place < count)
