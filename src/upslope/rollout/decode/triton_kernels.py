"""Triton kernels of one decoding step. Each does what its namesake in `upslope.rollout.decode.stepper` does in plain torch.

What they save is trips to memory and launches: a layer is four products and five or six kernels, three of them learning's own
(`upslope.policies.forward.triton.kernels`). A row's prompt is read where it lies, packed and shared by all its rows; the keys of
a long row are walked by several programs at once, whose results are put together in a fixed order. Of the vocabulary many
programs look at a stretch each; to draw a token one stretch is read again, and everything per halving where draws are truncated.
"""

from __future__ import annotations

import triton
import triton.language as tl

from upslope.policies.forward.triton.kernels import after_the_one_before, opened, store_fp8


@triton.jit
def thin_product(
    x, weight, x_scales, scales, out, M, N, K, SHARES,
    GATE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr, FP8: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """``x [M, K] @ weight.T`` of few rows, which takes as long as reading the weights; one program some features and a share.

    A share is the product over a stretch of the inner dimension: ``out [SHARES, M, N]`` has to be added up. With a gate the weight
    is ``[2 N, K]``, its first half goes through the activation and the second multiplies it; there is one share. Numbers in eight
    bits have scales, of each row ``x_scales [M]`` and of each feature ``scales``.
    """
    after_the_one_before(EARLY)
    feature = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    share = tl.program_id(1)
    row, inner = tl.arange(0, ROWS), tl.arange(0, INNER)
    each = tl.cdiv(tl.cdiv(K, SHARES), INNER) * INNER
    first = share * each
    last = tl.minimum(first + each, K)
    # The weights stand on the left: tensor cores want 64 rows there, and there are always as many features.
    found = tl.zeros((BLOCK, ROWS), tl.float32)
    other = tl.zeros((BLOCK, ROWS), tl.float32)
    weights = weight + feature[:, None].to(tl.int64) * K + inner[None, :]
    inputs = x + row[None, :] * K + inner[:, None]
    for at in range(first, last, INNER):
        inside = at + inner < last
        given = tl.load(inputs + at, (row[None, :] < M) & inside[:, None], 0.0)
        found = tl.dot(tl.load(weights + at, (feature[:, None] < N) & inside[None, :], 0.0), given, found)
        if GATE != "none":
            up = tl.load(weights + at + N.to(tl.int64) * K, (feature[:, None] < N) & inside[None, :], 0.0)
            other = tl.dot(up, given, other)
    if FP8:
        of_row = tl.load(x_scales + row, row < M, 0.0)[None, :]
        found *= tl.load(scales + feature, feature < N, 0.0)[:, None] * of_row
        if GATE != "none":
            other *= tl.load(scales + N + feature, feature < N, 0.0)[:, None] * of_row
    if GATE != "none":
        value, _ = opened(found.to(out.dtype.element_ty).to(tl.float32), GATE)
        found = value * other.to(out.dtype.element_ty).to(tl.float32)
    place = share.to(tl.int64) * M * N + row[None, :] * N + feature[:, None]
    tl.store(out + place, found.to(out.dtype.element_ty), (feature[:, None] < N) & (row[None, :] < M))


@triton.jit
def add_shares_and_norm(
    x, shares, bias, weight, seen, codes, scales, eps, M,
    D: tl.constexpr, BLOCK: tl.constexpr, SHARES: tl.constexpr, BIAS: tl.constexpr, FP8: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The shares of a product added to the stream ``x``, in order, and its norm in the precision of products, on request in eight
    bits too; one program a row.
    """
    after_the_one_before(EARLY)
    at = tl.arange(0, BLOCK)
    inside = at < D
    place = tl.program_id(0).to(tl.int64) * D + at
    value = tl.load(x + place, inside, 0.0)
    if SHARES > 0:
        added = tl.load(shares + place, inside, 0.0).to(tl.float32)
        for number in tl.static_range(1, SHARES):
            added += tl.load(shares + number * M * D + place, inside, 0.0).to(tl.float32)
        if BIAS:
            added += tl.load(bias + at, inside, 0.0).to(tl.float32)
        value += added
        tl.store(x + place, value, inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / D + eps)
    value = value * scale * tl.load(weight + at, inside, 0.0)
    tl.store(seen + place, value.to(seen.dtype.element_ty), inside)
    if FP8:
        store_fp8(value, inside, codes + place, scales + tl.program_id(0))


@triton.jit
def _stretch(table, ACROSS, slot, at, PAGE: tl.constexpr):
    """Which stretch of the cache has a slot's token, and which token is the first there: a page, or the slot's own stretch."""
    stretch, begun = slot, at * 0
    if PAGE:
        stretch, begun = tl.load(table + slot * ACROSS + at // PAGE).to(tl.int64), at // PAGE * PAGE
    return stretch, begun


@triton.jit
def rope_and_store(
    qkv, bias, q_out, keys, values, cos, sin, q_norm, k_norm, prompt, length, step, table, ACROSS, eps, ROOM, M,
    H: tl.constexpr, KV: tl.constexpr, HEADS: tl.constexpr, W: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    SHARES: tl.constexpr, BIAS: tl.constexpr, PAGE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Queries and keys rotated by their positions, keys and values written to the slot's cache; one program a slot."""
    after_the_one_before(EARLY)
    slot = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < H + 2 * KV) & (at < W // 2)
    said = tl.load(step + slot)
    place = tl.load(length + tl.load(prompt + slot)) + said
    source = qkv + (slot * (H + 2 * KV) + head) * W + at
    low = tl.load(source, inside, 0.0).to(tl.float32)
    high = tl.load(source + W // 2, inside, 0.0).to(tl.float32)
    for number in tl.static_range(1, SHARES):
        further = source + number * M * (H + 2 * KV) * W
        low += tl.load(further, inside, 0.0).to(tl.float32)
        high += tl.load(further + W // 2, inside, 0.0).to(tl.float32)
    if BIAS:
        low += tl.load(bias + head * W + at, inside, 0.0).to(tl.float32)
        high += tl.load(bias + head * W + W // 2 + at, inside, 0.0).to(tl.float32)
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
    stretch, begun = _stretch(table, ACROSS, slot, said, PAGE)
    target = keys + ((stretch * KV + head - H) * ROOM + said - begun) * W + at
    mine = inside & (head >= H) & turns
    tl.store(target, first, mine)
    tl.store(target + W // 2, second, mine)
    target = values + ((stretch * KV + head - H - KV) * ROOM + said - begun) * W + at
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
def _keys_each(keys, LEAST, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """How many of a row's keys one part has. It follows from the row alone: which others are there changes nothing."""
    return tl.maximum(LEAST, tl.cdiv(tl.cdiv(keys, PARTS), BLOCK) * BLOCK)


@triton.jit
def attend(
    q, prompt_keys, prompt_values, keys, values, out, tops, sums, prompt, start, length, step, table, ACROSS, scale, ROOM, LEAST,
    KV: tl.constexpr, REPEAT: tl.constexpr, MANY: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr, PAGE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A slot's last token on a part of its prompt and of what it has said; one program a slot, key head and part.

    With one part ``out`` is the result; with several it is each part's share, to be put together by `merge_parts`.
    """
    after_the_one_before(EARLY)
    part, kv, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    which = tl.load(prompt + slot)
    begin, many, said = tl.load(start + which), tl.load(length + which), tl.load(step + slot) + 1
    first, last = tl.zeros_like(many), many + said
    if PARTS > 1:
        each = _keys_each(last, LEAST, PARTS, BLOCK)
        first = part * each
        last = tl.minimum(first + each, last)
        if first >= last:
            return
    query, feature = tl.arange(0, MANY), tl.arange(0, WIDE)
    real = feature[None, :] < W
    mine = (slot * KV + kv) * REPEAT
    asked = tl.load(q + (mine + query[:, None]) * W + feature[None, :], (query[:, None] < REPEAT) & real, 0.0)
    best = tl.full((MANY,), float("-inf"), tl.float32)
    total = tl.zeros((MANY,), tl.float32)
    found = tl.zeros((MANY, WIDE), tl.float32)
    for block in range(first, tl.minimum(last, many), BLOCK):
        at = block + tl.arange(0, BLOCK)
        inside = at < tl.minimum(last, many)
        place = ((begin + at) * KV + kv)[:, None] * W + feature[None, :]
        shown = inside[:, None] & real
        k, v = tl.load(prompt_keys + place, shown, 0.0), tl.load(prompt_values + place, shown, 0.0)
        best, total, found = _more(asked, k, v, inside, scale, best, total, found, PRECISION)
    own = tl.maximum(first - many, 0)
    for block in range(own // BLOCK * BLOCK if PAGE else own, last - many, BLOCK):
        at = block + tl.arange(0, BLOCK)
        inside = at < last - many
        if PAGE:  # whole blocks, each of which lies within a page
            inside = inside & (at >= own)
        stretch, begun = _stretch(table, ACROSS, slot, block, PAGE)
        place = ((stretch * KV + kv) * ROOM + at - begun)[:, None] * W + feature[None, :]
        shown = inside[:, None] & real
        k, v = tl.load(keys + place, shown, 0.0), tl.load(values + place, shown, 0.0)
        best, total, found = _more(asked, k, v, inside, scale, best, total, found, PRECISION)
    there = mine + query
    if PARTS > 1:
        there = there * PARTS + part
        tl.store(tops + there, best, query < REPEAT)
        tl.store(sums + there, total, query < REPEAT)
    else:
        found = found / total[:, None]
    tl.store(out + there[:, None] * W + feature[None, :], found.to(out.dtype.element_ty), (query[:, None] < REPEAT) & real)


@triton.jit
def merge_parts(
    tops, sums, parts, out, prompt, length, step, LEAST,
    H: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """What `attend` found in the parts of a row's keys, as one softmax over all of them; one program a slot and head."""
    after_the_one_before(EARLY)
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys = tl.load(length + tl.load(prompt + slot)) + tl.load(step + slot) + 1
    part, feature = tl.arange(0, PARTS), tl.arange(0, WIDE)
    used = part < tl.cdiv(keys, _keys_each(keys, LEAST, PARTS, BLOCK))
    there = (slot * H + head) * PARTS + part
    top = tl.load(tops + there, used, float("-inf"))
    weight = tl.exp(top - tl.max(top))
    total = tl.sum(weight * tl.load(sums + there, used, 0.0))
    found = tl.load(parts + there[:, None] * W + feature[None, :], used[:, None] & (feature[None, :] < W), 0.0)
    found = tl.sum(found * weight[:, None], 0) / total
    tl.store(out + (slot * H + head) * W + feature, found.to(out.dtype.element_ty), feature < W)


@triton.jit
def survey(
    logits, tops, bottoms, masses, moments, places, V, temperature, GREEDY: tl.constexpr, CHUNK: tl.constexpr, MANY: tl.constexpr
):
    """Of a stretch of a slot's logits: the largest and where it is, the smallest, mass and moment relative to the largest."""
    slot, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = at < V
    x = tl.load(logits + slot * V + at, inside, -1e30)
    top = tl.max(x)
    there = slot * MANY + chunk
    tl.store(tops + there, top)
    if GREEDY:
        tl.store(places + there, tl.min(tl.where((x == top) & inside, at, V)))
    else:
        y = (x - top) * temperature
        mass = tl.where(inside, tl.exp(y), 0.0)
        tl.store(masses + there, tl.sum(mass))
        tl.store(moments + there, tl.sum(mass * y))
        tl.store(bottoms + there, tl.min(tl.where(inside, x, 1e30)))


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
    logits, tops, bottoms, masses, moments, places, uniforms, tokens, sampled, logps, entropies, rows, steps, said, ended, stops,
    limits, V, T, ROOM, temperature, top_k, top_p, min_floor,
    STOPS: tl.constexpr, GREEDY: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr,
    ROUNDS: tl.constexpr, BLOCK: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """A token of each slot by inverting the cumulative distribution, written down with its log-probability and entropy.

    `survey` has looked at stretches of ``BLOCK`` logits, at most ``MANY``.
    """
    slot = tl.program_id(0).to(tl.int64)
    row, step, over = tl.load(rows + slot), tl.load(steps + slot), tl.load(ended + slot)
    mine = logits + slot * V
    chunk = tl.arange(0, MANY)
    known = chunk * BLOCK < V
    top = tl.load(tops + slot * MANY + chunk, known, -1e30)
    best = tl.max(top)
    if GREEDY:
        place = tl.load(places + slot * MANY + chunk, known, V)
        token = tl.min(tl.where(top == best, place, V))
        logp = 0.0
        entropy = 0.0
    else:
        apart = (top - best) * temperature
        here = tl.where(known, tl.load(masses + slot * MANY + chunk, known, 0.0) * tl.exp(apart), 0.0)
        of_each = tl.load(moments + slot * MANY + chunk, known, 0.0) * tl.exp(apart) + here * apart
        total = tl.sum(here)
        moment = tl.sum(tl.where(known, of_each, 0.0))
        floor = (tl.min(tl.load(bottoms + slot * MANY + chunk, known, 1e30)) - best) * temperature - 1.0
        if TOP_K or TOP_P or MIN_P:
            if TOP_K:
                floor = _highest_floor(mine, V, best, temperature, floor, top_k, True, ROUNDS, BLOCK)
            if TOP_P:
                wanted = _above(mine, V, best, temperature, floor, False, BLOCK) * top_p
                floor = _highest_floor(mine, V, best, temperature, floor, wanted, False, ROUNDS, BLOCK)
            if MIN_P:
                floor = tl.maximum(floor, min_floor)
            here = tl.zeros((MANY,), tl.float32)
            moment = 0.0
            for number in range(0, tl.cdiv(V, BLOCK)):
                mass, y = _masses(mine, number * BLOCK, V, best, temperature, floor, BLOCK)
                here = tl.where(chunk == number, tl.sum(mass), here)
                moment += tl.sum(mass * y)
            total = tl.sum(here)
        # The first stretch in which the running mass passes the target holds the token; by rounding there may be none.
        target = tl.load(uniforms + row * T + step) * total
        running = tl.cumsum(here)
        found = tl.min(tl.where((running > target) & (here > 0), chunk, MANY))
        missed = found == MANY
        found = tl.where(missed, tl.max(tl.where(here > 0, chunk, 0)), found)
        before = tl.sum(tl.where(chunk == found, running - here, 0.0))
        mass, y = _masses(mine, found * BLOCK, V, best, temperature, floor, BLOCK)
        at = found * BLOCK + tl.arange(0, BLOCK)
        real = mass > 0
        token = tl.min(tl.where((before + tl.cumsum(mass) > target) & real, at, V))
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
