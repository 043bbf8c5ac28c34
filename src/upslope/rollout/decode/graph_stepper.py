"""Decoding on a GPU: Triton kernels between the products, and whole steps recorded as CUDA graphs that replay without Python.

A graph is recorded for a few numbers of slots. It reads and writes buffers whose addresses never change, so that the same graphs
serve step after step of a run; larger work makes a new stepper with larger buffers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from upslope.policies.forward import fp8
from upslope.policies.forward.blocks import Block
from upslope.policies.forward.fp8 import Fp8Rows
from upslope.policies.forward.layer_ops import Matrix, linear
from upslope.policies.forward.logprobs import head_logits
from upslope.policies.forward.triton.launch import GATE_BLOCK, GATE_WARPS, power, quantize_fp8, triton_found
from upslope.rollout.decode.pages import PAGE, Pages, Seats
from upslope.rollout.decode.record import DecodeJob, Record
from upslope.rollout.decode.stepper import Prompts, Stepper
from upslope.rollout.decode.thin_products import MOST_SHARES, ThinProducts, early_launch, most_rows
from upslope.rollout.decode.weights import Weights
from upslope.runtime import torch_private
from upslope.types import Sampling

SIZES = (16, 32, 64, 128, 256, 384, 512, 768, 1024)
"""Numbers of slots that graphs are recorded for."""
NEARLY = 0.9
"""Of the pages that there could be, if so many are there already."""
ROUNDS = 30
"""Halvings in the search for the floor of a truncated draw: below the resolution of a float32."""
DRAW_BLOCK, DRAW_WARPS = 2048, 4
ATTEND_BLOCK, ATTEND_WARPS, ATTEND_STAGES = 64, 4, 2
LEAST_KEYS, MOST_PARTS = 128, 16
MERGE_WARPS = 2
TURN_WARPS = 2
"""How kernels are cut."""


def graphs_help(device: torch.device) -> bool:
    """Whether this stepper can run here."""
    return device.type == "cuda" and triton_found()


def parts_of(room: int, key_heads: int) -> int:
    """In how many parts the keys of a row are walked: a row that may say little, or one with many key heads, needs fewer.

    On an H200 64 rows of 2,048 keys took 114 us with a program for each row and key head, 41 in four parts (two key heads of
    128 features); up to 512 keys the launch that puts parts together costs more than they save.
    """
    return max(1, min(MOST_PARTS, power(room) // (256 * key_heads)))


def attend_cut(wide: int, precise: bool) -> tuple[int, int]:
    """Keys that a program of attention looks at together, and its warps. In float32 it is no work for tensor cores, and so many
    keys as fit into registers.
    """
    if not precise:
        return ATTEND_BLOCK, ATTEND_WARPS
    return ATTEND_BLOCK // (2 if wide <= 128 else 4), 2 * ATTEND_WARPS


class Seen(NamedTuple):
    """What a matrix multiplies ``[B, F]``."""

    x: Tensor
    fp8: Fp8Rows | None = None
    """The same in eight bits, for matrices that are."""


Product = tuple[Tensor | None, int, Tensor | None]
"""A product in shares, how many they are, and a bias that is yet to be added to their sum."""


class GraphStepper(Stepper):
    """As `Stepper`, several steps at a time without waiting for the GPU."""

    slot_axis = 2
    steps = 8

    def __init__(self, weights: Weights, seats: Seats, room: int):
        super().__init__(weights, _up_to(seats.rows, SIZES), room)
        body, device, slots = weights.body, weights.device, len(self.slots.row)
        if seats.pages:
            self.pages = Pages(slots, room, seats.pages, device)
        stretches, self._stretch = (seats.pages + 1, PAGE) if seats.pages else (slots, room)
        self._page = PAGE if seats.pages else 0
        shape = (len(weights.blocks), 2, stretches, body.kv_heads, self._stretch, body.width)
        self.cache = torch.zeros(shape, dtype=weights.dtype, device=device)
        """Keys and values, a stretch for each slot; with pages, of each page."""
        wide = weights.blocks[0].qkv.low.shape[1]
        self._x = torch.zeros(slots, wide, device=device)
        self._seen = torch.zeros(slots, wide, dtype=weights.dtype, device=device)
        self._q = torch.zeros(slots, body.heads * body.width, dtype=weights.dtype, device=device)
        self._out = torch.zeros_like(self._q)
        self.parts = parts_of(room, body.kv_heads)
        self._shares = torch.zeros(slots, body.heads, self.parts, body.width, device=device) if self.parts > 1 else self._out
        self._tops, self._sums = (torch.zeros(slots, body.heads, self.parts, device=device) for _ in range(2))
        self.early = early_launch(device)
        """Whether kernels are launched before those before them have ended."""
        thin, inner = min(slots, most_rows(weights.in_eight_bits)), weights.blocks[0].down.low.shape[1]
        self._shares_out = torch.zeros(MOST_SHARES * thin * max(wide, weights.blocks[0].qkv.low.shape[0]), device=device)
        self._active = torch.zeros(slots, inner, dtype=weights.dtype, device=device)
        self._seen8, self._active8 = (
            Fp8Rows.blank(slots, features, device) if weights.in_eight_bits else None for features in (wide, inner)
        )
        self._graphs: dict[tuple[int, Sampling], Any] = {}
        self._pool: Any = None
        self._seen_chunks: tuple[Tensor, Tensor] | None = None
        self._kept: _Kept | None = None

    def fits(self, prompts: Prompts, seats: Seats, room: int, job: DecodeJob | None) -> bool:
        """Whether this one can be used again for such work."""
        kept = self._kept
        if kept is None or job is None or room != self.room or _up_to(seats.rows, SIZES) > len(self.slots.row):
            return False
        if self.pages is None:
            return not seats.pages and kept.fits(prompts, job)
        # Fewer rows leave room for some pages more, which are not worth recording graphs again. Where there are to be none, nobody
        # may be put back.
        at_once = min(len(job.limits), len(self.slots.row))
        wanted = NEARLY * seats.pages if seats.pages else at_once * self.pages.across
        return self.pages.count >= wanted and kept.fits(prompts, job)

    def begin(self, prompts: Prompts, job: DecodeJob | None = None) -> None:
        self.prompts = prompts
        if self._kept is None or (job is not None and not self._kept.fits(prompts, job)):
            self._kept = _Kept(self.weights, prompts, job)
            self._graphs = {}
        self._kept.take(prompts, job)
        for column in self.slots.columns():
            column.zero_()
        self.slots.ended.fill_(True)
        self._forget_pages(job)
        if job is not None:
            self.job = job

    def fill(self, slots: Tensor, rows: Tensor, prompts: Tensor) -> None:
        self._seat(slots, rows, prompts)
        self._left = self.room
        """Steps after which every row that is there now has ended."""

    def _move_cache(self, source: Tensor, target: Tensor) -> None:
        if self.pages is None:  # else the pages stay where they are
            super()._move_cache(source, target)

    def advance(self, count: int) -> None:
        size = _up_to(count, SIZES)
        key = (size, self.job.sampling)
        if key not in self._graphs:
            self._graphs[key] = self._recorded(size)
        for _ in range(min(self.steps, self._left)):
            self._graphs[key].replay()
        self._left -= self.steps

    def _recorded(self, size: int) -> Any:
        """One step of so many slots as a graph. A trial run before it compiles kernels; it must leave no trace."""
        columns = [column.clone() for column in self.slots.columns()]
        self.slots.ended.fill_(True)  # so the trial writes nothing down
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(size)
        torch.cuda.current_stream().wait_stream(stream)
        for column, before in zip(self.slots.columns(), columns, strict=True):
            column.copy_(before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # others may be copying a checkpoint
            self._step(size)
        self._pool = graph.pool()
        return graph

    @property
    def record(self) -> Record:
        assert self._kept is not None
        return self._kept.record

    def finish(self) -> None:
        assert self._kept is not None
        rows = len(self.job.limits)
        for column, own in zip(self.job.record, self.record, strict=True):
            column.copy_(own[:rows, : column.shape[1]])

    def logits(self, count: int) -> Tensor:
        from upslope.rollout.decode import triton_kernels as kernels

        weights, slots, kept = self.weights, self.slots, self._kept
        assert kept is not None
        body = weights.body
        torch.index_select(weights.embedding, 0, slots.token[:count], out=self._embedded(count))
        x = self._x[:count].copy_(self._embedded(count))
        # Adapters are products of their own.
        thin = None if body.apart else ThinProducts.of(count, self._shares_out, self.early, weights.dtype)
        found: Product = (None, 0, None)
        for number, block in enumerate(weights.step_blocks):
            seen = self._normed(x, found, block.before)
            qkv, shares, bias = self._product(thin, seen, block.qkv, block.qkv_bias)
            keys, values = self.cache[number]
            kernels.rope_and_store[(count,)](
                qkv, qkv if bias is None else bias, self._q, keys, values, weights.cos, weights.sin, *self._head_norms(block),
                slots.prompt, kept.length, slots.step, *self._where, body.eps, self._stretch, count, body.heads, body.kv_heads,
                power(body.heads + 2 * body.kv_heads), body.width, power(body.width // 2), block.q_norm is not None, shares,
                bias is not None, self._page, self.early, num_warps=TURN_WARPS, launch_pdl=self.early,
            )  # fmt: skip
            self._attend(number, count)
            found = self._product(thin, Seen(self._out[:count]), block.out, block.out_bias)
            seen = self._normed(x, found, block.between)
            found = self._product(thin, self._gated(thin, seen, block.gate_up), block.down, None)
        return head_logits(self._normed(x, found, weights.last_norm).x, weights.head)

    def _gated(self, thin: ThinProducts | None, seen: Seen, matrix: Matrix) -> Seen:
        """What comes out of a gate."""
        from upslope.policies.forward.triton.kernels import gated

        body, count = self.weights.body, len(seen.x)
        x, weight = _factors(seen, matrix)
        if thin is not None and thin.serves(weight):
            thin.gated(x, weight, body.activation, self._active)
        else:
            both, features = _whole_product(seen, matrix), self._active.shape[1]
            grid = (count, -(-features // GATE_BLOCK))
            gated[grid](both, self._active, features, body.activation, GATE_BLOCK, num_warps=GATE_WARPS)
        active = self._active[:count]
        if self._active8 is None:
            return Seen(active)
        quantize_fp8(active, *self._active8, self.early)
        return Seen(active, self._active8.first(count))

    @staticmethod
    def _product(thin: ThinProducts | None, seen: Seen, matrix: Matrix, bias: Matrix | None) -> Product:
        x, weight = _factors(seen, matrix)
        low_bias = None if bias is None else bias.low
        if thin is not None and thin.serves(weight):
            return *thin.product(x, weight), low_bias
        if matrix.fp8 is None:
            return linear(seen.x, matrix, bias), 1, None
        return _whole_product(seen, matrix), 1, low_bias

    def _attend(self, number: int, count: int) -> None:
        """Attention of each slot's newest token in a layer, into ``_out``."""
        from upslope.rollout.decode import triton_kernels as kernels

        weights, slots, kept, parts = self.weights, self.slots, self._kept, self.parts
        assert kept is not None
        body, (keys, values) = weights.body, self.cache[number]
        repeat, wide, precise = body.heads // body.kv_heads, power(max(16, body.width)), weights.dtype == torch.float32
        block, warps = attend_cut(wide, precise)
        kernels.attend[(parts, body.kv_heads, count)](
            self._q, kept.keys[number], kept.values[number], keys, values, self._shares, self._tops, self._sums, slots.prompt,
            kept.start, kept.length, slots.step, *self._where, body.scale, self._stretch, LEAST_KEYS, body.kv_heads, repeat,
            max(16, power(repeat)), body.width, wide, block, parts, "ieee" if precise else "tf32", self._page, self.early,
            num_warps=warps, num_stages=ATTEND_STAGES, launch_pdl=self.early,
        )  # fmt: skip
        if parts > 1:
            kernels.merge_parts[(count, body.heads)](
                self._tops, self._sums, self._shares, self._out, slots.prompt, kept.length, slots.step, LEAST_KEYS, body.heads,
                body.width, wide, block, parts, self.early, num_warps=MERGE_WARPS, launch_pdl=self.early,
            )  # fmt: skip

    @property
    def _where(self) -> tuple[Tensor, int]:
        """The table of pages and how many a slot has at the most; without pages nobody looks at it."""
        return (self.slots.step, 0) if self.pages is None else (self.pages.table, self.pages.across)

    def _embedded(self, count: int) -> Tensor:
        return self._seen[:count]

    def _normed(self, x: Tensor, found: Product, weight: Tensor) -> Seen:
        """The norm of the stream, to which a product is added before if there is one."""
        from upslope.rollout.decode.triton_kernels import add_shares_and_norm

        count, wide = x.shape
        (shares, many, bias), seen, eight = found, self._seen[:count], self._seen8
        add_shares_and_norm[(count,)](
            x, x if shares is None else shares, x if bias is None else bias, weight, seen, *(eight or (seen, x)),
            self.weights.body.eps, count, wide, power(wide), many, bias is not None, eight is not None, self.early, num_warps=4,
            launch_pdl=self.early,
        )  # fmt: skip
        return Seen(seen, None if eight is None else eight.first(count))

    @staticmethod
    def _head_norms(block: Block) -> tuple[Tensor, Tensor]:
        return (block.before if norm is None else norm for norm in (block.q_norm, block.k_norm))  # type: ignore[return-value]

    def _step(self, count: int) -> None:
        """Logits and a draw, all on the GPU."""
        from upslope.rollout.decode import triton_kernels as kernels

        kept, slots, sampling = self._kept, self.slots, self.job.sampling
        assert kept is not None
        logits = self.logits(count)
        vocabulary, greedy = logits.shape[1], sampling.temperature == 0
        block = min(DRAW_BLOCK, power(vocabulary))
        chunks, cold = -(-vocabulary // block), 1 / (sampling.temperature or 1.0)
        seen, places = self._survey(power(chunks))
        kernels.survey[(count, chunks)](logits, *seen, places, vocabulary, cold, greedy, block, power(chunks), num_warps=DRAW_WARPS)
        kernels.draw[(count,)](
            logits, *seen, places, kept.uniforms, *kept.record, slots.row, slots.step, slots.token, slots.ended.view(torch.int8),
            kept.stops, kept.limits, vocabulary, kept.uniforms.shape[1], self.room, cold, float(sampling.top_k),
            sampling.top_p, math.log(sampling.min_p) if sampling.min_p else 0.0, len(kept.stops), greedy,
            0 < sampling.top_k < vocabulary, sampling.top_p < 1, sampling.min_p > 0, ROUNDS, block, power(chunks),
            num_warps=DRAW_WARPS,
        )  # fmt: skip

    def _survey(self, chunks: int) -> tuple[Tensor, Tensor]:
        """Where the first look at logits is written down: four numbers of each stretch, and a place."""
        if self._seen_chunks is None:
            shape, device = (len(self.slots.row), chunks), self.weights.device
            self._seen_chunks = torch.zeros(4, *shape, device=device), torch.zeros(shape, dtype=torch.int32, device=device)
        return self._seen_chunks


def _factors(seen: Seen, matrix: Matrix) -> tuple[Tensor, Tensor] | tuple[Fp8Rows, Fp8Rows]:
    """What is multiplied, in the precision of the matrix."""
    if matrix.fp8 is None:
        return seen.x, matrix.low
    assert seen.fp8 is not None
    return seen.fp8, matrix.fp8


def _whole_product(seen: Seen, matrix: Matrix) -> Tensor:
    """By torch, in one piece and without a bias."""
    if matrix.fp8 is None or seen.fp8 is None:
        return linear(seen.x, matrix)
    found = fp8.product(seen.fp8, matrix.fp8, seen.x.dtype)
    if matrix.adapter is not None:
        found.addmm_(seen.x @ matrix.adapter.a.t(), matrix.adapter.b.t())
    return found


class _Kept:
    """Buffers that graphs read and write: prompts, random numbers, limits, what was drawn."""

    def __init__(self, weights: Weights, prompts: Prompts, job: DecodeJob | None):
        body, device = weights.body, weights.device
        tokens, texts = power(max(1, sum(prompts.lengths))), power(len(prompts.lengths))
        shape = (len(weights.blocks), tokens, body.kv_heads, body.width)
        self.keys = torch.zeros(shape, dtype=weights.dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.length, self.start = (torch.zeros(texts, dtype=torch.long, device=device) for _ in range(2))
        rows, room = (1, 1) if job is None else job.uniforms.shape
        self.uniforms = torch.zeros(power(rows), room, device=device)
        self.limits = torch.zeros(power(rows), dtype=torch.long, device=device)
        self.stops = torch.full((max(1, 0 if job is None else len(job.stops)),), -1, dtype=torch.long, device=device)
        self.record = Record.blank(power(rows), room, 0, device)

    def fits(self, prompts: Prompts, job: DecodeJob) -> bool:
        return (
            sum(prompts.lengths) <= self.keys.shape[1]
            and len(prompts.lengths) <= len(self.length)
            and job.uniforms.shape[0] <= self.uniforms.shape[0]
            and job.uniforms.shape[1] == self.uniforms.shape[1]
            and len(job.stops) <= len(self.stops)
        )

    def take(self, prompts: Prompts, job: DecodeJob | None) -> None:
        tokens, texts = sum(prompts.lengths), len(prompts.lengths)
        for kept, read in zip((self.keys, self.values), zip(*prompts.memory, strict=True), strict=True):
            torch_private.foreach_copy_([layer[:tokens] for layer in kept], list(read))
        self.length[:texts] = prompts.length
        self.start[:texts] = prompts.length.cumsum(0) - prompts.length
        if job is None:
            return
        rows = len(job.limits)
        self.uniforms[:rows], self.limits[:rows] = job.uniforms, job.limits
        self.stops.fill_(-1)
        self.stops[: len(job.stops)] = job.stops
        for column, blank in zip(self.record, job.record, strict=True):
            column[:rows] = blank


def _up_to(count: int, sizes: tuple[int, ...]) -> int:
    """The smallest of the sizes that holds so many."""
    return next((size for size in sizes if size >= count), power(count))
