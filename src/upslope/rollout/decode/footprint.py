"""The footprint of sampling: bytes of the buffers that decoding allocates, counted from the code beside this file.

Whoever changes what a stepper or an engine allocates changes the count here: a test holds it against the tensors themselves.
"""

from __future__ import annotations

from upslope.policies.forward.triton.launch import power
from upslope.policies.model_shape import ModelShape
from upslope.rollout.decode.graph_stepper import SIZES, parts_of
from upslope.rollout.decode.pages import PAGE, Seats, seats
from upslope.rollout.decode.stepper import COPIED
from upslope.rollout.decode.thin_products import MOST_SHARES, most_rows

CPU_MEMORY, GPU_SHARE, MOST_ROWS = 2 * 2**30, 6, 1024
"""What the engine gives to prompts and to rows (`TorchEngine.memory_bytes`), and how many rows it continues at once."""
ROW_COLUMNS = 8 + 3 * 4
"""Bytes of a token in a record: its id, whether it was sampled, its log-probability and entropy."""
SCALE = 4
"""Bytes of the scale of a row in eight bits."""


def fp8_bytes(shape: ModelShape, size: int, on_gpu: bool) -> int:
    """The matrices that steps multiply with in eight bits (`upslope.rollout.decode.weights`), with a scale for each output; in
    plain torch also what they stand for."""
    matrices = shape.joined + shape.single - shape.layers * shape.width * shape.heads * shape.head_width
    scales = SCALE * shape.layers * (shape.projected + 2 * shape.inner + shape.width)
    return matrices * (1 if on_gpu else 1 + size) + scales


def token_bytes(shape: ModelShape, size: int) -> int:
    """Keys and values of a token in all layers.

    Args:
        size: of a number in products.
    """
    return 2 * shape.layers * shape.kv_heads * shape.head_width * size


def engine_memory(total: int, on_gpu: bool) -> int:
    """What the engine lets prompts take, and what it lets rows take."""
    return total // GPU_SHARE if on_gpu else CPU_MEMORY


def rows_at_once(shape: ModelShape, size: int, rows: int, room: int, memory: int, on_gpu: bool) -> Seats:
    """How many rows the engine continues at once: it counts a token twice, and six copies of logits; for graphs once, and two."""
    each, copies = (1, 8) if on_gpu else (2, 24)
    return seats(min(rows, MOST_ROWS), memory, room, copies * shape.vocabulary, each * token_bytes(shape, size), on_gpu)


def slots(count: int, on_gpu: bool) -> int:
    """Slots that a stepper makes for so many rows."""
    return next((each for each in SIZES if each >= count), power(count)) if on_gpu else count


def cache_bytes(
    shape: ModelShape, size: int, at_once: Seats, room: int, prompts: list[int], on_gpu: bool, in_eight_bits: bool = False
) -> int:
    """What stays from step to step: the slots' keys and values; on a GPU also copies of the prompts' and the columns that graphs
    read and write, each up to the next power of two.

    Args:
        at_once: rows continued at once, and their pages.
        prompts: tokens of those that are read together.
        in_eight_bits: whether steps multiply in eight bits.
    """
    each, shared = token_bytes(shape, size), [max(0, length - 1) for length in prompts]
    if not on_gpu:
        copied = max(shared, default=0) if max(shared, default=0) <= COPIED else 0
        return at_once.rows * (room + copied) * each
    places = slots(at_once.rows, on_gpu)
    inside = 4 * shape.width + size * (shape.width + 2 * shape.heads * shape.head_width + shape.inner)
    # What the parts of a row's keys gave, and the shares of products of few rows.
    parts = parts_of(room, shape.kv_heads)
    inside += 4 * shape.heads * parts * (2 + (shape.head_width if parts > 1 else 0))
    if in_eight_bits:
        inside += shape.width + shape.inner + 2 * SCALE
    shares = 4 * MOST_SHARES * min(places, most_rows(in_eight_bits)) * max(shape.width, shape.projected)
    tokens = (at_once.pages + 1) * PAGE if at_once.pages else places * room
    table = 4 * places * -(-room // PAGE) if at_once.pages else 0
    return tokens * each + table + power(max(1, sum(shared))) * each + places * inside + shares


def column_bytes(rows: int, room: int, on_gpu: bool) -> int:
    """Random numbers and what is drawn of all rows; graphs have copies of both, up to the next power of two."""
    own = rows * room * (4 + ROW_COLUMNS)
    return own + (power(rows) * room * (4 + ROW_COLUMNS) if on_gpu else 0)


def prompt_bytes(shape: ModelShape, size: int, prompts: list[int], on_gpu: bool) -> int:
    """Keys and values of prompts as they were read, with the queries that lie beside them; on a CPU also padded to the longest."""
    shared = [max(0, length - 1) for length in prompts]
    padded = 0 if on_gpu else len(shared) * max(shared, default=0) * token_bytes(shape, size)
    return sum(shared) * shape.layers * shape.projected * size + padded


def reading_bytes(shape: ModelShape, size: int, prompts: list[int]) -> int:
    """What one layer takes while prompts are read."""
    return sum(prompts) * (size * (3 * shape.inner + 2 * shape.width) + 2 * 4 * shape.width)


def drawing_bytes(shape: ModelShape, count: int, on_gpu: bool) -> int:
    """Logits and what is made of them for a draw; a graph's lie in a pool of its own, and those of its trial beside them."""
    return 4 * shape.vocabulary * (2 * slots(count, on_gpu) if on_gpu else 5 * count)
