"""Decoding on a GPU: Triton kernels between the products, and whole steps recorded as CUDA graphs that replay without Python.

A graph is recorded for a few numbers of slots. It reads and writes buffers whose addresses never change, so that the same graphs
serve step after step of a run; larger work makes a new stepper with larger buffers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies.forward.blocks import Block
from upslope.policies.forward.layer_ops import Matrix
from upslope.policies.forward.logprobs import head_logits
from upslope.policies.forward.triton.launch import GATE_BLOCK, GATE_WARPS, power, triton_found
from upslope.rollout.decode.record import DecodeJob, Record
from upslope.rollout.decode.stepper import Prompts, Stepper
from upslope.rollout.decode.weights import Weights
from upslope.runtime import torch_private
from upslope.types import Sampling

SIZES = (16, 32, 64, 128, 256, 384, 512, 768, 1024)
"""Numbers of slots that graphs are recorded for."""
ROUNDS = 30
"""Halvings in the search for the floor of a truncated draw: below the resolution of a float32."""
DRAW_BLOCK, DRAW_WARPS = 2048, 4
ATTEND_BLOCK, ATTEND_WARPS, ATTEND_STAGES = 32, 1, 2
TURN_WARPS = 2
"""How kernels are cut."""


def graphs_help(device: torch.device) -> bool:
    """Whether this stepper can run here."""
    return device.type == "cuda" and triton_found()


class GraphStepper(Stepper):
    """As `Stepper`, several steps at a time without waiting for the GPU."""

    slot_axis = 2
    steps = 8
    """How many tokens `advance` draws in each slot before it is asked which rows have ended."""

    def __init__(self, weights: Weights, count: int, room: int):
        super().__init__(weights, _up_to(count, SIZES), room)
        body, device, slots = weights.body, weights.device, len(self.slots.row)
        shape = (len(weights.blocks), 2, slots, body.kv_heads, room, body.width)
        self.cache = torch.zeros(shape, dtype=weights.dtype, device=device)
        wide = weights.blocks[0].qkv.low.shape[1]
        self._x = torch.zeros(slots, wide, device=device)
        self._seen = torch.zeros(slots, wide, dtype=weights.dtype, device=device)
        self._q = torch.zeros(slots, body.heads * body.width, dtype=weights.dtype, device=device)
        self._out = torch.zeros_like(self._q)
        self._active = torch.zeros(slots, weights.blocks[0].down.low.shape[1], dtype=weights.dtype, device=device)
        self._graphs: dict[tuple[int, Sampling], Any] = {}
        self._pool: Any = None
        self._kept: _Kept | None = None

    def fits(self, prompts: Prompts, count: int, room: int, job: DecodeJob | None) -> bool:
        """Whether this one can be used again for such work."""
        kept = self._kept
        if kept is None or job is None or room != self.room or _up_to(count, SIZES) > len(self.slots.row):
            return False
        return kept.fits(prompts, job)

    def begin(self, prompts: Prompts, job: DecodeJob | None = None) -> None:
        self.prompts = prompts
        if self._kept is None or (job is not None and not self._kept.fits(prompts, job)):
            self._kept = _Kept(self.weights, prompts, job)
            self._graphs = {}
        self._kept.take(prompts, job)
        for column in self.slots.columns():
            column.zero_()
        self.slots.ended.fill_(True)
        if job is not None:
            self.job = job

    def fill(self, slots: Tensor, rows: Tensor, prompts: Tensor) -> None:
        own = self.slots
        own.row[slots], own.prompt[slots], own.step[slots] = rows, prompts, 0
        own.token[slots], own.ended[slots] = self.prompts.last[prompts], False
        self._left = self.room
        """Steps after which every row that is there now has ended."""

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
        with torch.cuda.graph(graph, pool=self._pool):
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
        from upslope.policies.forward.triton.kernels import gated
        from upslope.rollout.decode import triton_kernels as kernels

        weights, slots, kept = self.weights, self.slots, self._kept
        assert kept is not None
        body = weights.body
        torch.index_select(weights.embedding, 0, slots.token[:count], out=self._embedded(count))
        x = self._x[:count].copy_(self._embedded(count))
        delta: Tensor | None = None
        repeat, wide = body.heads // body.kv_heads, power(max(16, body.width))
        for number, block in enumerate(weights.blocks):
            seen = self._normed(x, delta, block.before)
            qkv = F.linear(seen, block.qkv.low, _low(block.qkv_bias))
            keys, values = self.cache[number]
            kernels.rope_and_store[(count,)](
                qkv, self._q, keys, values, weights.cos, weights.sin, *self._head_norms(block), slots.prompt, kept.length,
                slots.step, body.eps, self.room, body.heads, body.kv_heads, power(body.heads + 2 * body.kv_heads), body.width,
                power(body.width // 2), block.q_norm is not None, num_warps=TURN_WARPS,
            )  # fmt: skip
            kernels.attend[(count, body.kv_heads)](
                self._q, kept.keys[number], kept.values[number], keys, values, self._out, slots.prompt, kept.start, kept.length,
                slots.step, body.scale, self.room, body.kv_heads, repeat, max(16, power(repeat)), body.width, wide,
                ATTEND_BLOCK, "ieee" if weights.dtype == torch.float32 else "tf32", num_warps=ATTEND_WARPS,
                num_stages=ATTEND_STAGES,
            )  # fmt: skip
            delta = F.linear(self._out[:count], block.out.low, _low(block.out_bias))
            seen = self._normed(x, delta, block.between)
            both = F.linear(seen, block.gate_up.low)
            features = self._active.shape[1]
            grid = (count, -(-features // GATE_BLOCK))
            gated[grid](both, self._active, features, body.activation, GATE_BLOCK, num_warps=GATE_WARPS)
            delta = F.linear(self._active[:count], block.down.low)
        return head_logits(self._normed(x, delta, weights.last_norm), weights.head)

    def _embedded(self, count: int) -> Tensor:
        return self._seen[:count]

    def _normed(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        from upslope.policies.forward.triton.kernels import add_norm

        seen = self._seen[: len(x)]
        given, wide = x if delta is None else delta, x.shape[1]
        add_norm[(len(x),)](x, given, weight, x, seen, self.weights.body.eps, wide, power(wide), delta is not None, num_warps=4)
        return seen

    @staticmethod
    def _head_norms(block: Block) -> tuple[Tensor, Tensor]:
        return (block.before if norm is None else norm for norm in (block.q_norm, block.k_norm))  # type: ignore[return-value]

    def _step(self, count: int) -> None:
        """Logits and a draw, all on the GPU."""
        from upslope.rollout.decode import triton_kernels as kernels

        kept, slots, sampling = self._kept, self.slots, self.job.sampling
        assert kept is not None
        logits = self.logits(count)
        vocabulary = logits.shape[1]
        kernels.draw[(count,)](
            logits, kept.uniforms, *kept.record, slots.row, slots.step, slots.token, slots.ended.view(torch.int8), kept.stops,
            kept.limits, vocabulary, kept.uniforms.shape[1], self.room, 1 / (sampling.temperature or 1.0), float(sampling.top_k),
            sampling.top_p, math.log(sampling.min_p) if sampling.min_p else 0.0, len(kept.stops), sampling.temperature == 0,
            0 < sampling.top_k < vocabulary, sampling.top_p < 1, sampling.min_p > 0, ROUNDS,
            min(DRAW_BLOCK, power(vocabulary)), num_warps=DRAW_WARPS,
        )  # fmt: skip


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


def _low(bias: Matrix | None) -> Tensor | None:
    return None if bias is None else bias.low


def _up_to(count: int, sizes: tuple[int, ...]) -> int:
    """The smallest of the sizes that holds so many."""
    return next((size for size in sizes if size >= count), power(count))
