"""Triton kernels of one decoding step. Each does what its namesake in `upslope.rollout.decode.stepper` does in plain torch.

What they save is trips to memory and launches: a layer is four products and five kernels, three of them learning's own
(`upslope.policies.forward.triton.kernels`). A row's prompt is read where it lies, packed and shared by all its rows; the
vocabulary is read twice to draw a token, once more per halving where draws are truncated.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rope_and_store(
    qkv, q_out, keys, values, cos, sin, q_norm, k_norm, prompt, length, step, eps, ROOM,
    H: tl.constexpr, KV: tl.constexpr, HEADS: tl.constexpr, W: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Queries and keys rotated by their positions, keys and values written to the slot's cache; one program a slot."""
    slot = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < H + 2 * KV) & (at < W // 2)
    said = tl.load(step + slot)
    place = tl.load(length + tl.load(prompt + slot)) + said
    source = qkv + (slot * (H + 2 * KV) + head) * W + at
    low = tl.load(source, inside, 0.0).to(tl.float32)
    high = tl.load(source + W // 2, inside, 0.0).to(tl.float32)
    turns = head < H + KV
    if NORM:
        scale = 1.0 / tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / W + eps)[:, None]
        known = at < W // 2
        asking = head < H
        low_norm = tl.where(asking, tl.load(q_norm + at, known, 0.0), tl.load(k_norm + at, known, 0.0))
        high_norm = tl.where(asking, tl.load(q_norm + W // 2 + at, known, 0.0), tl.load(k_norm + W // 2 + at, known, 0.0))
        low = tl.where(turns, low * scale * low_norm, low)
        high = tl.where(turns, high * scale * high_norm, high)
    angle = place * W + at
    real = at < W // 2
    cos_low, cos_high = tl.load(cos + angle, real, 0.0), tl.load(cos + angle + W // 2, real, 0.0)
    sin_low, sin_high = tl.load(sin + angle, real, 0.0), tl.load(sin + angle + W // 2, real, 0.0)
    first = tl.where(turns, low * cos_low + high * sin_low, low).to(q_out.dtype.element_ty)
    second = tl.where(turns, high * cos_high + low * sin_high, high).to(q_out.dtype.element_ty)
    target = q_out + (slot * H + head) * W + at
    tl.store(target, first, inside & (head < H))
    tl.store(target + W // 2, second, inside & (head < H))
    target = keys + ((slot * KV + head - H) * ROOM + said) * W + at
    mine = inside & (head >= H) & turns
    tl.store(target, first, mine)
    tl.store(target + W // 2, second, mine)
    target = values + ((slot * KV + head - H - KV) * ROOM + said) * W + at
    mine = inside & (head >= H + KV)
    tl.store(target, first, mine)
    tl.store(target + W // 2, second, mine)


@triton.jit
def _more(q, k, v, inside, scale, best, total, found, PRECISION: tl.constexpr):
    """A further block of keys and values in a running softmax."""
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    score = tl.where(inside[None, :], score, float("-inf"))
    top = tl.maximum(best, tl.max(score, 1))
    shrink = tl.exp(best - top)
    weight = tl.exp(score - top[:, None])
    found = found * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
    return top, total * shrink + tl.sum(weight, 1), found


@triton.jit
def attend(
    q, prompt_keys, prompt_values, keys, values, out, prompt, start, length, step, scale, ROOM,
    KV: tl.constexpr, REPEAT: tl.constexpr, MANY: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A slot's last token on its prompt and on what it has said; one program a slot and key head, all its queries together."""
    slot, kv = tl.program_id(0).to(tl.int64), tl.program_id(1)
    which = tl.load(prompt + slot)
    begin, many, said = tl.load(start + which), tl.load(length + which), tl.load(step + slot) + 1
    query, feature = tl.arange(0, MANY), tl.arange(0, WIDE)
    real = feature[None, :] < W
    mine = (slot * KV + kv) * REPEAT
    asked = tl.load(q + (mine + query[:, None]) * W + feature[None, :], (query[:, None] < REPEAT) & real, 0.0)
    best = tl.full((MANY,), float("-inf"), tl.float32)
    total = tl.zeros((MANY,), tl.float32)
    found = tl.zeros((MANY, WIDE), tl.float32)
    for first in range(0, many, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < many
        place = ((begin + at) * KV + kv)[:, None] * W + feature[None, :]
        shown = inside[:, None] & real
        k, v = tl.load(prompt_keys + place, shown, 0.0), tl.load(prompt_values + place, shown, 0.0)
        best, total, found = _more(asked, k, v, inside, scale, best, total, found, PRECISION)
    for first in range(0, said, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < said
        place = ((slot * KV + kv) * ROOM + at)[:, None] * W + feature[None, :]
        shown = inside[:, None] & real
        k, v = tl.load(keys + place, shown, 0.0), tl.load(values + place, shown, 0.0)
        best, total, found = _more(asked, k, v, inside, scale, best, total, found, PRECISION)
    found = found / total[:, None]
    target = out + (mine + query[:, None]) * W + feature[None, :]
    tl.store(target, found.to(out.dtype.element_ty), (query[:, None] < REPEAT) & real)


@triton.jit
def _masses(logits, first, V, best, temperature, floor, BLOCK: tl.constexpr):
    """Of a block of a row: the mass of each token that reaches the floor, and its log relative to the likeliest's."""
    at = first + tl.arange(0, BLOCK)
    y = (tl.load(logits + at, at < V, -1e30) - best) * temperature
    return tl.where((y >= floor) & (at < V), tl.exp(y), 0.0), y


@triton.jit
def _above(logits, V, best, temperature, floor, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """How many logits of a row reach the floor, or how much mass they have together."""
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        at = first + tl.arange(0, BLOCK)
        y = (tl.load(logits + at, at < V, -1e30) - best) * temperature
        sums += tl.where((y >= floor) & (at < V), 1.0 if COUNT else tl.exp(y), 0.0)
    return tl.sum(sums)


@triton.jit
def _highest_floor(logits, V, best, temperature, low, wanted, COUNT: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    """The highest floor with at least so many logits, or so much mass, above it: by halving."""
    high = 0.0
    for _ in range(ROUNDS):
        middle = 0.5 * (low + high)
        enough = _above(logits, V, best, temperature, middle, COUNT, BLOCK) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def draw(
    logits, uniforms, tokens, sampled, logps, entropies, rows, steps, said, ended, stops, limits,
    V, T, ROOM, temperature, top_k, top_p, min_floor,
    STOPS: tl.constexpr, GREEDY: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr,
    ROUNDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A token of each slot by inverting the cumulative distribution, written down with its log-probability and entropy."""
    slot = tl.program_id(0).to(tl.int64)
    row, step, over = tl.load(rows + slot), tl.load(steps + slot), tl.load(ended + slot)
    mine = logits + slot * V
    # One pass: in each lane the largest so far, and masses and moments relative to it.
    tops = tl.full((BLOCK,), -1e30, tl.float32)
    bottoms = tl.full((BLOCK,), 1e30, tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    masses = tl.zeros((BLOCK,), tl.float32)
    moments = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(mine + at, at < V, -1e30)
        if GREEDY:
            where = tl.where(x > tops, at, where)
            tops = tl.maximum(tops, x)
        else:
            top = tl.maximum(tops, x)
            shrink = tl.exp((tops - top) * temperature)
            mass = tl.where(at < V, tl.exp((x - top) * temperature), 0.0)
            moments = shrink * (moments + masses * (tops - top) * temperature) + mass * (x - top) * temperature
            masses = shrink * masses + mass
            tops = top
            bottoms = tl.minimum(bottoms, tl.where(at < V, x, 1e30))
    best = tl.max(tops)
    if GREEDY:
        token = tl.min(tl.where(tops == best, where, V))
        logp = 0.0
        entropy = 0.0
    else:
        floor = (tl.min(bottoms) - best) * temperature - 1.0
        apart = tl.maximum((tops - best) * temperature, -1e4)  # lanes that saw nothing have no mass
        shrink = tl.exp(apart)
        total = tl.sum(masses * shrink)
        moment = tl.sum(shrink * (moments + masses * apart))
        if TOP_K or TOP_P or MIN_P:
            if TOP_K:
                floor = _highest_floor(mine, V, best, temperature, floor, top_k, True, ROUNDS, BLOCK)
            if TOP_P:
                wanted = _above(mine, V, best, temperature, floor, False, BLOCK) * top_p
                floor = _highest_floor(mine, V, best, temperature, floor, wanted, False, ROUNDS, BLOCK)
            if MIN_P:
                floor = tl.maximum(floor, min_floor)
            masses = tl.zeros((BLOCK,), tl.float32)
            moments = tl.zeros((BLOCK,), tl.float32)
            for first in range(0, V, BLOCK):
                mass, y = _masses(mine, first, V, best, temperature, floor, BLOCK)
                masses += mass
                moments += mass * y
            total = tl.sum(masses)
            moment = tl.sum(moments)
        # The first block in which the running mass passes the target holds the token; by rounding there may be none.
        target = tl.load(uniforms + row * T + step) * total
        running = 0.0
        first = 0
        filled = 0
        mass, y = _masses(mine, 0, V, best, temperature, floor, BLOCK)
        here = tl.sum(mass)
        while (running + here <= target) & (first + BLOCK < V):
            filled = tl.where(here > 0, first, filled)
            running += here
            first += BLOCK
            mass, y = _masses(mine, first, V, best, temperature, floor, BLOCK)
            here = tl.sum(mass)
        missed = running + here <= target
        first = tl.where(here > 0, first, filled)
        mass, y = _masses(mine, first, V, best, temperature, floor, BLOCK)
        at = first + tl.arange(0, BLOCK)
        real = mass > 0
        token = tl.min(tl.where((running + tl.cumsum(mass) > target) & real, at, V))
        token = tl.where((token == V) | missed, tl.max(tl.where(real, at, -1)), token)
        norm = tl.log(total)
        logp = tl.sum(tl.where(at == token, y, 0.0)) - norm
        entropy = norm - moment / total
    alive = over == 0
    target_place = row * T + step
    tl.store(tokens + target_place, token.to(tl.int64), alive)
    tl.store(sampled + target_place, 1.0, alive)
    tl.store(logps + target_place, logp, alive)
    tl.store(entropies + target_place, entropy, alive)
    tl.store(said + slot, token.to(tl.int64))
    now = step + alive.to(tl.int64)
    stop = now >= tl.load(limits + row)
    for number in tl.static_range(STOPS):
        stop = stop | (token == tl.load(stops + number))
    tl.store(ended + slot, (stop | (over != 0)).to(tl.int8))
    tl.store(steps + slot, tl.minimum(now, ROOM - 1))
