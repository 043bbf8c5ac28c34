"""How a run on a GPU is cut, from the plan and the card's memory: slices and recomputed layers; and what to change if it cannot be.

Nothing here asks what happens to be free: the same plan on the same kind of card is cut in the same way, and ``run.toml`` says how.
What rows may take is not among it: on another card it is another, and a resumed run's tokens are the same to rounding there.
On a CPU both stay as they are: recomputing would switch off what sampling keeps for learning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from upslope.policies.model_shape import ModelShape
from upslope.rollout.decode.footprint import engine_memory
from upslope.sizes.card import Card
from upslope.sizes.memory import SLACK, Memory, learning_bytes, loaded_bytes, memory_of, rows_wait, slice_tokens
from upslope.sizes.work import MOMENTS, Work

LEFT_FREE = 0.05
"""Of a card, for what no estimate knows."""
LEFT_BY_ROWS = 0.15
"""And by rows that are sampled: slices can be halved if memory runs out, their cache cannot."""
BUSY_FLOP = 6e13
"""Work of a slice that keeps a GPU busy long enough that launching the next one does not count: of 1.5 billion parameters on an
H200, slices of 2,816, 5,632 and 10,752 tokens reach 37, 48 and 52% of the rated speed, with 34, 38 and 46 GiB in all."""
MOST_TOKENS = 65536
"""A slice gains nothing from more."""
BUSY_TOKENS = 2176
"""And at least so many tokens, whatever the model's size: with 7.6 billion parameters and adapters these hold 8 answers of 256
tokens to one prompt. They reached 50% of the rated speed, and 2,048 of a later version 45%."""
WORTH_TOKENS = 2048
"""Slices below this cost more than recomputing does."""
ROUNDED = 64
RANK = 32
"""Of adapters that are proposed."""


def settled(shape: ModelShape | None, work: Work, card: Card) -> Work:
    """The work with slices and recomputed layers as they will be."""
    return dataclasses.replace(_settled(shape, work, card), unsettled=work.unsettled or work)


def _settled(shape: ModelShape | None, work: Work, card: Card) -> Work:
    if not card.on_gpu or shape is None:
        return dataclasses.replace(work, recompute="off" if work.recompute == "auto" else work.recompute)
    if not shape.ours or work.shard:  # `transformers` computes it: cut by a fixed share of the card
        bound = work.slice_tokens if work.slice_tokens is not None else 0
        if work.shard and not bound:  # all learners are cut alike, whatever card each has
            bound = slice_tokens(shape, work, card)
        return dataclasses.replace(work, recompute="off" if work.recompute == "auto" else work.recompute, slice_tokens=bound)
    wanted = min(work.update_tokens, max(work.unit, WORTH_TOKENS))
    given = work.recompute
    if given == "auto":
        again = _least_layers(shape, work, card, wanted, _most_tokens(shape, work, 0))
    else:
        again = work.layers_again(shape.layers)
    most = _most_tokens(shape, work, again)
    named = {0: "off", shape.layers: "all"}.get(again, again) if given == "auto" else given
    tokens = work.slice_tokens
    if tokens is None:
        found = min(_tokens(shape, work, card, again, most), most)
        tokens = max(found // ROUNDED * ROUNDED, ROUNDED)
    return _with_rows(shape, dataclasses.replace(work, recompute=named, slice_tokens=tokens), card)


def _with_rows(shape: ModelShape, work: Work, card: Card) -> Work:
    """Where rows would wait for memory: they may take what all else leaves of the card."""
    least = dataclasses.replace(work, row_bytes=0)
    left = int(card.total * (1 - LEFT_BY_ROWS)) - memory_of(shape, least, card).total
    if left <= 0 or not rows_wait(shape, least, card):
        return least
    more = dataclasses.replace(work, row_bytes=engine_memory(card.total, card.on_gpu) + left)
    return more if memory_of(shape, more, card).total <= card.total * (1 - LEFT_FREE) else least


def _most_tokens(shape: ModelShape, work: Work, again: int) -> int:
    """Tokens of a slice that keep the card busy: more where layers are computed again, which launches them again as well."""
    busy = int(BUSY_FLOP * (1 + again / shape.layers) / (6 * shape.parameters))
    return max(min(MOST_TOKENS, max(work.unit, BUSY_TOKENS, busy)), work.unit)


def _least_layers(shape: ModelShape, work: Work, card: Card, wanted: int, most: int) -> int:
    """The fewest layers to recompute so that slices hold what is wanted; all of them if none will do."""
    if _tokens(shape, work, card, 0, most) >= wanted:
        return 0
    low, high = 1, shape.layers  # from one on, each layer more leaves more room
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _tokens(shape, work, card, middle, most) >= wanted else (middle + 1, high)
    return low


def _tokens(shape: ModelShape, work: Work, card: Card, again: int, most: int) -> int:
    """The most tokens of a slice that the card holds beside all else, with so many layers recomputed."""
    fixed = memory_of(shape, dataclasses.replace(work, recompute=again, slice_tokens=1), card).fixed
    room = int(card.total * (1 - LEFT_FREE)) - fixed
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if learning_bytes(shape, work, card, middle, again) * SLACK <= room:
            low = middle
        else:
            high = middle - 1
    return low


def fits(memory: Memory, card: Card) -> bool:
    return memory.total <= card.total


def nearest(shape: ModelShape, work: Work, card: Card) -> tuple[str, Memory] | None:
    """Flags that make it fit, the first of those that change least, and what it takes with them; None if nothing does."""
    for flags, changed in _changes(work.unsettled or work):
        memory = memory_of(shape, settled(shape, changed, card), card)
        loads = card.on_gpu or loaded_bytes(shape, changed, card) <= card.total  # a GPU's host is another matter
        if fits(memory, card) and loads:
            return flags, memory
    return None


def _changes(work: Work) -> Iterator[tuple[str, Work]]:
    """What can be given up, the cheapest first: time, then the moments' precision, then full training, then that of the weights
    under adapters, then sizes. What was given as a bound of slices goes with any of them."""
    free = dataclasses.replace(work, slice_tokens=None)
    if work.slice_tokens:
        yield "no --slice-tokens", free
    least = dataclasses.replace(free, recompute="all")
    again = "" if work.recompute in ("all", "auto") or work.shard else "--recompute all"
    if again:
        yield again, least
    starts = [("", free, least)]
    if not work.lora and not work.shard and not work.offloaded:
        for held_in in ("bfloat16", "8bit"):
            if (low := MOMENTS[held_in]) < work.moment_bytes:
                own, most = (dataclasses.replace(each, moment_bytes=low) for each in (free, least))
                starts.append((f"--adam-states {held_in}", own, most))
    if not work.lora and not work.shard:
        starts.append((f"--lora {RANK}", dataclasses.replace(free, lora=RANK), dataclasses.replace(least, lora=RANK)))
    if not work.packed and not work.precise and not work.shard:
        flags, rank = ("", work.lora) if work.lora else (f"--lora {RANK} ", RANK)
        own, most = (dataclasses.replace(each, lora=rank, packed=True) for each in (free, least))
        starts.append((f"{flags}--base-precision nf4", own, most))
    for flags, own, most in starts[1:]:
        yield flags, own
        yield f"{flags} {again}".strip(), most
    for flags, _, most in starts:
        for smaller, changed in _smaller(most):
            yield " ".join(filter(None, (flags, again, smaller))), changed


def _smaller(work: Work) -> Iterator[tuple[str, Work]]:
    """Fewer tokens: fewer problems or smaller groups, as little as will do; only then shorter answers, which are another task."""
    divisors = (2, 4, 8, 16, 32)
    for divisor in divisors:
        if work.tasks // divisor >= 1:
            tasks = work.tasks // divisor
            yield f"--tasks-per-step {tasks}", dataclasses.replace(work, tasks=tasks)
        if work.samples // divisor >= 2:
            samples = work.samples // divisor
            yield f"--samples-per-task {samples}", dataclasses.replace(work, samples=samples)
    for divisor in divisors:
        if work.max_tokens // divisor >= 16:
            room = work.max_tokens // divisor
            yield f"--max-tokens {room}", dataclasses.replace(work, max_tokens=room)
        if work.max_tokens // divisor >= 16 and work.tasks // divisor >= 1:
            room, tasks = work.max_tokens // divisor, work.tasks // divisor
            yield f"--max-tokens {room} --tasks-per-step {tasks}", dataclasses.replace(work, max_tokens=room, tasks=tasks)
