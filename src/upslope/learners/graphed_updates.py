"""Several updates as one CUDA graph: what a GPU computes of them is recorded once and played again on other rows.

Small networks keep a GPU waiting for the next launch. A recorded block of updates is one launch; the rows and random numbers of
the coming block are drawn on the CPU while the GPU plays the last one, and are the very numbers that the CPU would use. Elsewhere
than on a GPU the same blocks are made without a recording: what is tested there is all but the recording itself.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from upslope.errors import Remark
from upslope.learners.slow_weights import slowest
from upslope.policies.control.network_policy import RARE, NetworkPolicy
from upslope.types import Method, Metrics, Trajectories

BLOCK = 20
"""Updates in a recording, where they come so many at a time."""

ALIGNED = 16
"""Bytes at whose multiples tensors of a block begin."""

Noise = Callable[[str, str, tuple[int, ...]], Tensor]
Asked = dict[tuple[str, str, tuple[int, ...]], Tensor]
"""Random numbers that were asked for, by kind, name and shape."""
Draw = Callable[[Sequence[int]], tuple[Trajectories, list[Noise]]]
"""The rows of updates with these numbers, one behind the other, and the random numbers of each, on the CPU."""
Learn = Callable[[Trajectories, Noise, int, Any], None]
"""One update on rows of the device; the last argument takes metrics."""


def cycle_of(method: Method, policy: NetworkPolicy) -> int:
    """Updates after which all that is delayed has come round."""
    delays = [getattr(method.policy, "every", 1), slowest(method), *(model.every for _, model in method.learned)]
    delays += [every for _, every in policy.lags.values() if every <= RARE]
    return math.lcm(*delays)


def recordable(method: Method) -> bool:
    """Whether all of an update is computed on the device: a model that is solved, not descended, answers from the CPU."""
    return not method.solved


class Sums:
    """Metrics of a block, added up on the device."""

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = {}

    def add(self, name: str, value: Tensor) -> None:
        self.values.setdefault(name, []).append(value.detach())

    def means(self) -> Metrics:
        """Means of all that was added; here one waits for the device."""
        return {name: float(torch.stack(values).double().mean()) for name, values in self.values.items()}

    def totals(self) -> tuple[list[str], Tensor, list[int]]:
        """Names, the sum of each, and of how many."""
        names = list(self.values)
        return (
            names,
            torch.stack([torch.stack(self.values[name]).double().sum() for name in names]),
            [len(self.values[n]) for n in names],
        )


class _Slots:
    """Tensors of several updates in one piece of memory on the device, written from the CPU in one copy.

    There are two pieces on the CPU, so that one can be filled while the other is on its way.
    """

    def __init__(self, like: list[Tensor], device: torch.device):
        self.device, ends, total = device, [], 0
        for tensor in like:
            start = -(-total // ALIGNED) * ALIGNED
            total = start + tensor.numel() * tensor.element_size()
            ends.append((start, total))
        pinned = device.type == "cuda"
        self._there = torch.empty(total, dtype=torch.uint8, device=device)
        self._here = [torch.empty(total, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._sent: list[Any] = [None, None]
        self._turn = 0

        def views(memory: Tensor) -> list[Tensor]:
            pieces = zip(ends, like, strict=True)
            return [memory[start:end].view(tensor.dtype).view(tensor.shape) for (start, end), tensor in pieces]

        self.on_device, self._on_cpu = views(self._there), [views(memory) for memory in self._here]

    def send(self, tensors: list[Tensor]) -> None:
        """Writes all of them over those of the last time."""
        turn, self._turn = self._turn, 1 - self._turn
        if self._sent[turn] is not None:
            self._sent[turn].synchronize()
        for into, tensor in zip(self._on_cpu[turn], tensors, strict=True):
            into.copy_(tensor)
        self._there.copy_(self._here[turn], non_blocking=True)
        if self.device.type == "cuda":
            self._sent[turn] = torch.cuda.Event()
            self._sent[turn].record()


class _Recording:
    """One block: where its rows and numbers lie on the device, and the graph that reads them."""

    def __init__(self, slots: _Slots, rows: Trajectories, noise: list[Asked]):
        self.slots, self.rows, self.noise = slots, rows, noise
        self.graph: Any = None
        self.names: list[str] = []
        self.counts: list[int] = []
        self.totals: Tensor | None = None


class GraphedUpdates:
    """Blocks of updates, recorded by where in the cycle of delays they begin.

    Args:
        policy: Its rarely moving copies are moved between blocks, the others within them.
        draw, learn: One update, in its two halves.
    """

    def __init__(self, policy: NetworkPolicy, method: Method, draw: Draw, learn: Learn):
        self.device, self.cycle, self.draw, self.learn = policy.device, cycle_of(method, policy), draw, learn
        self._policy, device = policy, policy.device
        self._rare = [every for _, every in policy.lags.values() if every > RARE]
        self.records = device.type == "cuda" and recordable(method)
        self._recordings: dict[tuple[int, int], _Recording] = {}
        self._totals: dict[str, tuple[Tensor, int]] = {}

    def forget(self) -> None:
        """What was recorded no longer holds: a knob has moved."""
        self._recordings.clear()

    def run(self, first: int, count: int) -> None:
        """The updates from number ``first`` on."""
        while count > 0:
            block = min([count, BLOCK, *(every - (first - 1) % every for every in self._rare)])
            self._block(first, block)
            self._policy.follow(first + block - 1, rarely=True)
            first, count = first + block, count - block

    def means(self) -> Metrics:
        """Means of all metrics since the last call."""
        found = {name: float(total) / count for name, (total, count) in self._totals.items()}
        self._totals = {}
        return found

    def _block(self, first: int, count: int) -> None:
        key = (first % self.cycle, count)
        if key not in self._recordings:
            self._recordings[key] = self._first_time(first, count)  # made as it goes: nothing was recorded yet
            return
        recording = self._recordings[key]
        self._fill(recording, first)
        if recording.graph is None and self.records:
            self._record(recording, first)
        if recording.graph is not None:
            recording.graph.replay()
        else:
            self._play(recording, first)
        self._add(recording)

    def _first_time(self, first: int, count: int) -> _Recording:
        """Makes the block and finds out what it asks for: rows and numbers of the same kinds will come again."""
        rows, noises = self.draw(range(first, first + count))
        here, asked = rows.to(self.device), []
        for offset, noise in enumerate(noises):
            taken: Asked = {}

            def take(kind: str, name: str, shape: tuple[int, ...], taken: Asked = taken, noise: Noise = noise) -> Tensor:
                taken[kind, name, shape] = noise(kind, name, shape)
                return taken[kind, name, shape].to(self.device)

            sums = Sums()
            self.learn(share_of_rows(here, offset, count), take, first + offset, sums)
            self._take(*sums.totals())
            asked.append(taken)
        slots = _Slots(_listed_with(rows, asked), self.device)
        views = iter(slots.on_device)
        placed = rows._map(lambda column: next(views))
        return _Recording(slots, placed, [{key: next(views) for key in taken} for taken in asked])

    def _fill(self, recording: _Recording, first: int) -> None:
        """The block's rows and numbers, written over those of the last time."""
        rows, noises = self.draw(range(first, first + len(recording.noise)))
        numbers = [{key: noise(*key) for key in asked} for noise, asked in zip(noises, recording.noise, strict=True)]
        recording.slots.send(_listed_with(rows, numbers))

    def _play(self, recording: _Recording, first: int) -> None:
        sums, count = Sums(), len(recording.noise)
        for offset, noise in enumerate(recording.noise):
            self.learn(share_of_rows(recording.rows, offset, count), placed(noise), first + offset, sums)
        recording.names, recording.totals, recording.counts = sums.totals()

    def _record(self, recording: _Recording, first: int) -> None:
        """Records the block. Where a part waits for the device or copies from the CPU, updates are made one by one from now on."""
        torch.cuda.synchronize()
        graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
        gc.collect()  # to free what an earlier learner left on the device would spoil a recording under way
        gc.disable()
        try:
            # A recording that fails does not go back to the stream it came from.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._play(recording, first)
        except RuntimeError as problem:
            self.records = False
            torch.cuda.synchronize()
            told = f"updates cannot be recorded as a CUDA graph ({str(problem).splitlines()[0]}); they are made one by one, slower."
            warnings.warn(Remark(told), stacklevel=2)
            return
        finally:
            if collects:
                gc.enable()
        recording.graph = graph

    def _add(self, recording: _Recording) -> None:
        assert recording.totals is not None
        self._take(recording.names, recording.totals, recording.counts)

    def _take(self, names: list[str], totals: Tensor, counts: list[int]) -> None:
        for name, total, count in zip(names, totals.unbind(), counts, strict=True):
            known, before = self._totals.get(name, (0.0, 0))
            self._totals[name] = (known + total, before + count)


def placed(numbers: Asked) -> Noise:
    """Random numbers that stand where they were put."""
    return lambda kind, name, shape: numbers[kind, name, shape]


def share_of_rows(rows: Trajectories, number: int, count: int) -> Trajectories:
    """One of ``count`` equal shares of the rows, as views."""
    if count == 1:
        return rows
    size = rows.rows // count
    return rows.take_rows(slice(number * size, (number + 1) * size))


def listed(rows: Trajectories) -> list[Tensor]:
    """Every tensor of some rows, in a fixed order."""
    found: list[Tensor] = []

    def pick(column: Tensor) -> Tensor:
        found.append(column)
        return column

    rows._map(pick)
    return found


def _listed_with(rows: Trajectories, numbers: list[Asked]) -> list[Tensor]:
    """Every tensor of a block, in a fixed order: rows first."""
    return listed(rows) + [number for each in numbers for number in each.values()]
