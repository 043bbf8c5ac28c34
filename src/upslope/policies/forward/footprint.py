"""The footprint of learning: bytes that the passes of our own decoder keep and take, counted from the code beside this file.

Whoever changes what a pass saves for its backward pass changes the count here: a test holds it against what autograd really keeps.
A layer (`blocks`, `layer_ops`, `attention`) keeps of each token
  the stream before its first norm and before its second one, in float32;
  queries, keys and values as they were rotated; attention's result and its logsumexps;
  gate and up; on a CPU also the gate's activation and the two scales of the norms, which kernels on a GPU compute again.
A layer that is recomputed keeps what it is given: the stream, and what the layer before adds to it.
"""

from __future__ import annotations

from upslope.policies.forward.logprobs import CHUNK_FLOATS, GPU_CHUNK_FLOATS
from upslope.policies.forward.nf4 import BLOCK, GROUP
from upslope.policies.model_shape import ModelShape

STREAM = 4
"""Bytes of a number of the stream, of logsumexps and of logits: they are never in half precision."""


def kept_before(shape: ModelShape, size: int, on_gpu: bool) -> int:
    """Bytes that a layer keeps of a token up to its attention's keys and values.

    Args:
        size: of a number in products.
    """
    rotated = (shape.heads + shape.kv_heads) * shape.head_width
    # Norms of heads keep what they are given, in float32, and a scale of each head; torch on a CPU also what they make of it.
    scales = STREAM * (shape.heads + shape.kv_heads)
    normed = STREAM * rotated + scales + (0 if on_gpu else size * shape.projected) if shape.head_norms else 0
    return STREAM * shape.width + size * shape.projected + normed + (0 if on_gpu else STREAM)


def kept_behind(shape: ModelShape, size: int, on_gpu: bool) -> int:
    """Bytes that a layer keeps of a token from its attention on."""
    attended = size * shape.heads * shape.head_width + STREAM * shape.heads
    inner = size * shape.inner * (2 if on_gpu else 3)
    return attended + STREAM * shape.width + inner + (0 if on_gpu else STREAM)


def kept_at_ends(shape: ModelShape, on_gpu: bool) -> tuple[int, int]:
    """Bytes kept outside of layers: of every token, and of those in addition that predict one."""
    everywhere = 8 + 2 * STREAM * shape.head_width  # ids, cosines and sines
    # What the last norm is given, on a CPU a step between, and what it gives; its scale; ids, normalisers, entropies of the chosen.
    return everywhere, (2 if on_gpu else 3) * STREAM * shape.width + STREAM + 8 + 2 * STREAM


def kept_bytes(shape: ModelShape, size: int, on_gpu: bool, shared: int, own: int, recompute: int = 0) -> int:
    """Bytes that the forward pass of a slice keeps for its backward pass.

    Args:
        shared: tokens of prompts, each once; of their last layer nothing is computed but keys and values.
        own: tokens of rows.
        recompute: layers that keep only what they are given.
    """
    tokens, again = shared + own, min(recompute, shape.layers)
    given = tokens * (again * STREAM + max(again - 1, 0) * size) * shape.width
    before, behind = kept_before(shape, size, on_gpu), kept_behind(shape, size, on_gpu)
    whole = shape.layers - again
    inside = whole * (tokens * before + tokens * behind) - (shared * behind if whole else 0)
    everywhere, predicting = kept_at_ends(shape, on_gpu)
    return given + inside + tokens * everywhere + own * predicting


def kept_of_token(shape: ModelShape, size: int, on_gpu: bool, recompute: int = 0) -> int:
    """Bytes that the backward pass keeps of a row's token."""
    return kept_bytes(shape, size, on_gpu, 0, 1, recompute)


def one_layer_bytes(shape: ModelShape, size: int, on_gpu: bool, tokens: int, recompute: int = 0) -> int:
    """What the backward pass of one layer takes beside all that is kept: gradients of gate and up, of their product and of the
    stream, the gradient of its largest matrix unless it is added in place; and the layer itself where it is computed again."""
    grads = tokens * (size * 4 * shape.inner + 3 * STREAM * shape.width)
    largest = 0 if on_gpu and size < STREAM else STREAM * 2 * shape.inner * shape.width
    again = tokens * (kept_before(shape, size, on_gpu) + kept_behind(shape, size, on_gpu)) if recompute else 0
    return grads + largest + again


def packed_bytes(shape: ModelShape) -> int:
    """Bytes of the layers' matrices in four bits, with their scales (`nf4`) and where these are (`packed_matrix`)."""
    each_group = 4 + 4 + 3 * 8
    numbers = shape.joined + shape.single
    return int(numbers * (1 / 2 + 1 / BLOCK + each_group / (BLOCK * GROUP)))


def largest_matrix(shape: ModelShape) -> int:
    """Numbers of the largest of a layer's matrices, those that share an input together."""
    return shape.width * max(2 * shape.inner, shape.projected)


def head_bytes(shape: ModelShape, size: int, on_gpu: bool, tokens: int, learns: bool) -> int:
    """What log-probabilities take while they are computed and on the way back: a chunk of logits a few times, the head in the
    precision of products and, where it ``learns``, its gradient twice. In half precision on a GPU the head is held in it, and its
    gradient is added in place."""
    most = GPU_CHUNK_FLOATS if on_gpu else CHUNK_FLOATS
    chunk = min(tokens * shape.vocabulary, max(most, shape.vocabulary))
    if on_gpu and size < STREAM:
        return (STREAM + size) * chunk
    return 3 * STREAM * chunk + shape.head * ((size if size != STREAM else 0) + (2 * STREAM if learns else 0))


def activation_cache_bytes(shape: ModelShape, size: int, shared: int, own: int) -> int:
    """What sampling keeps for learning (`activation_cache`): all products of each token, of prompts the last layer's heads only."""
    behind = size * (shape.heads * shape.head_width + 2 * shape.width + 3 * shape.inner) + STREAM * shape.heads
    whole = shape.layers * (shared + own) * (size * shape.projected + behind)
    return whole - shared * behind
