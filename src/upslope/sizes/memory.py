"""Memory of a run by kind, from the shape of its model and the work of a step.

Weights, gradients and moments are counted to the byte, activations and cache from the counts that stand beside the passes
(`policies.forward.footprint`, `rollout.decode.footprint`). What no count can know (CUDA's own, how much the allocator leaves
unused between its blocks) are the constants here, to be calibrated on a GPU.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from upslope.learners.offloaded_adam import lane_bytes
from upslope.policies.forward import footprint as learning
from upslope.policies.model_shape import ModelShape
from upslope.policies.slice_budget import CPU_SLICE_BYTES, cpu_tokens, gpu_tokens
from upslope.rollout.decode import footprint as sampling
from upslope.rollout.decode.pages import Seats
from upslope.sizes.card import Card, gibibytes
from upslope.sizes.work import Work

CUDA_OWN = 800 * 2**20
"""CUDA's context, the libraries' workspaces, compiled kernels."""
SLACK = 1.03
"""What the allocator reserves for activations and buffers, over what they ask for."""
FLOAT32 = 4
WEIGHTS, LOW, EIGHT_BITS, PACKED, UNPACKED, GRADS, MOMENTS, COPIES, GATHERED, ACTIVATIONS, CACHE, OWN, OTHERS = (
    "weights, float32", "weights, bfloat16", "weights, 8 bits", "weights, 4 bits", "a matrix unpacked", "gradients",
    "Adam's moments", "references and snapshots", "layers put together", "activations", "keys and values", "CUDA's own",
    "further learners",
)  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Bytes by kind, and the tokens of a slice that they are of."""

    kinds: dict[str, int]
    slice_tokens: int

    @property
    def total(self) -> int:
        return sum(self.kinds.values())

    @property
    def fixed(self) -> int:
        """All but what a slice takes."""
        return self.total - self.kinds[ACTIVATIONS]

    def __str__(self) -> str:
        return ", ".join(f"{name} {gibibytes(count)}" for name, count in self.kinds.items() if count >= 2**20)


def itemsize(work: Work, card: Card) -> int:
    """Bytes of a number in products."""
    return 2 if card.on_gpu and not work.precise else FLOAT32


def memory_of(shape: ModelShape, work: Work, card: Card) -> Memory:
    """The most that a run holds at a time."""
    size, heads = itemsize(work, card), work.head_outputs * (shape.width + 1)
    adapters = shape.adapters(work.lora) if work.lora else 0
    learned = (adapters or shape.parameters) + heads
    part = -(-(learned - heads) // work.parts) + heads  # heads are whole everywhere
    exact, low = _weights(shape, work, card, size, adapters)
    tokens = slice_tokens(shape, work, card)
    again = work.layers_again(shape.layers)
    sampled = _Sampling(shape, work, card, size) if work.sampled_here else None
    kept = sampled.kept(again) if sampled and not work.shard else 0
    slice_bytes = learning_bytes(shape, work, card, tokens, again, kept) + kept
    passing = sampled.passing() if sampled else 0
    kinds = {
        WEIGHTS: exact + FLOAT32 * heads,
        LOW: low,
        EIGHT_BITS: sampling.fp8_bytes(shape, size, card.on_gpu) if work.fp8 and sampled and shape.ours else 0,
        PACKED: learning.packed_bytes(shape) if _is_packed(shape, work) else 0,
        UNPACKED: size * learning.largest_matrix(shape) if _is_packed(shape, work) else 0,
        GRADS: FLOAT32 * part,
        MOMENTS: lane_bytes(part) if work.offloaded and card.on_gpu else int(work.moment_bytes * part),
        COPIES: FLOAT32 * work.moved_copies * part + _still_copy(shape, work, card, part) * (work.copies - work.moved_copies),
        GATHERED: _gathered(shape, size) if work.shard else 0,
        ACTIVATIONS: int(max(slice_bytes, passing + kept) * (SLACK if card.on_gpu else 1)),
        CACHE: sampled.staying() if sampled else 0,
        OWN: CUDA_OWN if card.on_gpu else 0,
    }
    each = sum(kinds[name] for name in (GRADS, MOMENTS, COPIES, GATHERED)) + slice_bytes
    each += FLOAT32 * part if work.shard else sum(kinds[name] for name in (WEIGHTS, LOW, PACKED, UNPACKED))
    kinds[OTHERS] = 0 if card.on_gpu else (work.learners - 1) * each  # each has a GPU of its own
    return Memory({name: count for name, count in kinds.items() if count or name == ACTIVATIONS}, tokens)


def _weights(shape: ModelShape, work: Work, card: Card, size: int, adapters: int) -> tuple[int, int]:
    """Bytes of weights in float32 and in half precision.

    Beside adapters the weights, which never move, are held once on a GPU, in half precision, and both sampling and learning read
    them. Otherwise they are held in float32, and on a GPU once more in half precision, for sampling and learning; sampling has an
    embedding of its own there if it is not tied to the head. Where products are in float32 too, sampling has a set of its own, with
    embedding and head apart even where they are tied, and learning puts together what it multiplies with. On a CPU only matrices
    that share an input are put together, and beside adapters all are computed anew. Of a base in four bits (`PACKED`) only what
    lies outside of the layers' matrices is here, and adapters once more for sampling and once for learning.
    """
    all_of = FLOAT32 * (shape.parameters + adapters)
    matrices = shape.joined + shape.single
    if work.shard:  # the part that learns, and one whole set to sample with, evaluate and save
        exact = all_of + FLOAT32 * -(-shape.parameters // work.parts)
        sampling_set = size * (matrices + 2 * shape.head if card.on_gpu else shape.joined) if work.sampled_here else 0
        return (exact, sampling_set) if size < FLOAT32 else (exact + sampling_set, 0)
    if not shape.ours:
        return all_of, 0
    if _is_packed(shape, work):
        outside = shape.parameters - matrices
        if size < FLOAT32:
            return FLOAT32 * adapters, size * (outside + adapters)
        return FLOAT32 * (outside + 3 * adapters), 0
    if not card.on_gpu:
        return all_of + size * (2 * shape.joined + (matrices if work.lora else 0)), 0
    if work.lora and size < FLOAT32:
        return FLOAT32 * adapters, size * (shape.parameters + adapters)
    if size < FLOAT32:
        embedding = 0 if shape.tied or not work.sampled_here else shape.head
        return all_of, size * (matrices + shape.head + embedding)
    sampling_set = size * (matrices + 2 * shape.head) if work.sampled_here else 0
    return all_of + sampling_set + size * shape.joined, 0


def _is_packed(shape: ModelShape, work: Work) -> bool:
    return work.packed and shape.ours and not work.shard


def _still_copy(shape: ModelShape, work: Work, card: Card, part: int) -> int:
    """Bytes of a copy that never moves: of all weights on a GPU its matrices in half precision; a head that is tied to the
    embedding, and all else, as they are."""
    size = itemsize(work, card)
    if size == FLOAT32 or not shape.ours or work.lora or work.shard:
        return FLOAT32 * part
    return FLOAT32 * part - (FLOAT32 - size) * (shape.joined + shape.single + (0 if shape.tied else shape.head))


def _gathered(shape: ModelShape, size: int) -> int:
    """What is put together of a model in parts at a time: embedding, head and last norm through a whole pass, beside them a layer
    and the next; of both the gradient, until it is divided again, and the buffer in which that is done."""
    ends = (1 if shape.tied else 2) * shape.head + shape.width
    layer = max(shape.parameters - ends, 0) // max(shape.layers, 1)
    return size * (2 * layer + ends) + size * (layer + ends) + FLOAT32 * max(layer, ends)


def loaded_bytes(shape: ModelShape, work: Work, card: Card, exact: bool = False) -> int:
    """What a model takes of the host's memory until it is packed; 0 of one that is not.

    Args:
        exact: it is read in float32 whatever it is for, as one with adapters is that are merged into it.
    """
    return (2 if itemsize(work, card) == 2 and not exact else FLOAT32) * shape.parameters if _is_packed(shape, work) else 0


def slice_tokens(shape: ModelShape, work: Work, card: Card) -> int:
    """Tokens of the largest slice."""
    shape = dataclasses.replace(shape, ours=shape.ours and not work.shard)  # `transformers` computes what is in parts
    size, again = itemsize(work, card), work.layers_again(shape.layers)
    bound = work.slice_tokens
    if not bound and card.on_gpu:
        bound = gpu_tokens(shape, size, again, card.total, bool(work.lora))
    elif not bound:
        bound = cpu_tokens(shape, size, again, CPU_SLICE_BYTES)
    return min(work.update_tokens, max(bound, work.unit))


def sampled_at_once(shape: ModelShape, work: Work, card: Card) -> Seats:
    """How many of a step's rows are sampled at once, at the most: as many as there are slots; of none where that is not known."""
    if not (work.sampled_here and shape.ours):
        return Seats(0, 0)
    rows, pages = _Sampling(shape, work, card, itemsize(work, card)).at_once
    return Seats(min(sampling.slots(rows, card.on_gpu), work.rows), pages)


def rows_wait(shape: ModelShape, work: Work, card: Card) -> bool:
    """Whether memory does not hold all rows of a step at once, each as long as it may be."""
    at_once = sampled_at_once(shape, work, card)
    return at_once.pages > 0 or 0 < at_once.rows < min(work.rows, sampling.MOST_ROWS)


def learning_bytes(shape: ModelShape, work: Work, card: Card, tokens: int, again: int, kept: int = 0) -> int:
    """What learning takes of a slice of so many tokens.

    Args:
        kept: bytes that sampling has computed for it; they are copied, unless all rows are equally long.
    """
    size, on_gpu = itemsize(work, card), card.on_gpu
    if not shape.ours or work.shard:
        return _plain_learning(shape, work, tokens)
    held = kept or learning.kept_bytes(shape, size, on_gpu, 0, tokens, again)
    layer = learning.one_layer_bytes(shape, size, on_gpu, tokens, again)
    return held + max(layer, learning.head_bytes(shape, size, on_gpu, tokens, learns=not work.lora))


class _Sampling:
    """Bytes of sampling."""

    def __init__(self, shape: ModelShape, work: Work, card: Card, size: int):
        self.shape, self.work, self.card, self.size = shape, work, card, size
        self.memory = sampling.engine_memory(card.total, card.on_gpu)
        self.each = sampling.token_bytes(shape, size)
        self.prompts = self._together() if shape.ours else []
        rows = work.row_bytes or self.memory
        self.at_once = sampling.rows_at_once(shape, size, work.rows, work.max_tokens, rows, card.on_gpu and shape.ours)

    def _together(self) -> list[int]:
        """The longest prompts, as many as the engine reads at once."""
        found: list[int] = []
        for length in self.work.longest:
            if found and (sum(found) + length) * 2 * self.each > self.memory:
                break
            found.append(length)
        return found

    def staying(self) -> int:
        """From step to step."""
        if not self.shape.ours:
            return _plain_sampling(self.shape, self.work, self.memory, self.each)
        room, on_gpu = self.work.max_tokens, self.card.on_gpu
        held = sampling.cache_bytes(self.shape, self.size, self.at_once, room, self.prompts, on_gpu, self.work.fp8)
        held += sampling.prompt_bytes(self.shape, self.size, self.prompts, on_gpu)
        return held + sampling.column_bytes(self.work.rows, room, on_gpu) + (self._drawing() if on_gpu else 0)

    def passing(self) -> int:
        """While it goes on."""
        if not self.shape.ours:
            return 0
        reading = sampling.reading_bytes(self.shape, self.size, self.prompts)
        return reading if self.card.on_gpu else max(reading, self._drawing())

    def _drawing(self) -> int:
        return sampling.drawing_bytes(self.shape, self.at_once.rows, self.card.on_gpu)

    def kept(self, again: int) -> int:
        """Of what it computes, for learning: on a CPU, where nothing is recomputed and not too much is kept."""
        shape, work = self.shape, self.work
        if self.card.on_gpu or again or not shape.ours or shape.head_norms or work.fp8 or len(self.prompts) < len(work.longest):
            return 0
        shared = sum(max(0, length - 1) for length in work.longest)
        found = learning.activation_cache_bytes(shape, self.size, shared, work.rows * work.max_tokens)
        return found if found <= CPU_SLICE_BYTES // 2 else 0


def _scores(shape: ModelShape, rows: int, queries: int, keys: int, copies: int) -> int:
    """Of one layer's attention by `transformers`: so many copies written out, or only a mask and its copy."""
    return rows * queries * keys * (4 * shape.heads * copies if shape.eager else 1 + 4)


def _plain_sampling(shape: ModelShape, work: Work, memory: int, each: int) -> int:
    """A model that `transformers` computes: every row with its prompt."""
    longest = work.longest[0]
    text = longest + work.max_tokens
    row = 24 * shape.vocabulary + 2 * text * each
    prompts = min(work.tasks, max(1, memory // max(1, work.samples * row)))
    layer = 4 * prompts * longest * (6 * shape.width + 3 * shape.inner)
    reading = _scores(shape, prompts, longest, longest, 4) + layer + prompts * longest * each
    rows = prompts * work.samples
    return max(reading, 2 * rows * text * each + 20 * rows * shape.vocabulary)


def _plain_learning(shape: ModelShape, work: Work, tokens: int) -> int:
    """The same in learning: rows padded to the longest, whole logits; equal prompts are computed once where the model allows it,
    and their keys and values handed to each row."""
    longest, room = work.longest[0], work.max_tokens
    rows = max(1, min(work.rows, tokens // (longest + room)))
    shared = work.samples > 1 and shape.shares_prompts and not work.shard
    prompts = -(-rows // work.samples) if shared else rows
    handed = 2 * rows * (longest + room) * sampling.token_bytes(shape, FLOAT32) if shared else 0
    token = 4 * shape.layers * (16 * shape.width + 2 * shape.inner)
    copies = shape.layers + 2  # the backward pass needs those of every layer
    scores = _scores(shape, prompts, longest, longest, copies) + _scores(shape, rows, room, longest + room, copies)
    return (prompts * longest + rows * room) * token + handed + scores + 4 * 3 * rows * room * shape.vocabulary
