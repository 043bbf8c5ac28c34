"""AdamW whose moments are in the host's memory: none of a GPU's, but for the stretches of them that are worked on.

A stretch is brought to the device on one stream, moved by torch's own kernel on the stream that trains, and taken back on a third:
two stretches are under way at a time. Numbers are those of AdamW with moments on the device, and so are the files of a checkpoint.
On a CPU, where both are one memory, it is AdamW to the bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from upslope.runtime.snapshots import HostMemory
from upslope.types import State

CHUNK = 2**25
"""Numbers of a stretch, each with four bytes in both moments."""
UNDER_WAY = 2
"""Stretches."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class OffloadedAdam(torch.optim.AdamW):
    """As torch's fused AdamW, with moments in host memory, which is pinned where parameters are on a GPU."""

    def __init__(self, groups: Any, **how: Any):
        super().__init__(groups, **how, fused=True)
        self._memory = HostMemory()
        weakref.finalize(self, self._memory.close)  # what is pinned must not be given back as it is
        self._lanes: dict[torch.device, _Lane] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for lane in self._lanes.values():
            lane.begin()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.make_state(parameter)
                    if self._elsewhere(parameter):
                        self._stream(parameter, parameter.grad, state, group)
                    else:
                        mean, square = (state[name] for name in MOMENTS)
                        _move(parameter, parameter.grad, mean, square, state["step"].clone(), group)
                    state["step"] += 1

    def make_state(self, parameter: Tensor) -> State:
        """What is held of a parameter; that of all of them is made if it is not there."""
        if not self.state[parameter]:
            several = [each for group in self.param_groups for each in group["params"] if each.requires_grad]
            missing = {(name, str(id(each))): each for each in several if not self.state[each] for name in MOMENTS}
            self._memory.make(missing)
            for each in several:
                if not self.state[each]:
                    self.state[each]["step"] = torch.zeros(())
                    self.state[each] |= {name: self._memory.room((name, str(id(each))), each).zero_() for name in MOMENTS}
        return self.state[parameter]

    def state_dict(self) -> State:
        """As torch's; what is on its way back to the host is waited for."""
        for lane in self._lanes.values():
            lane.end()
        return super().state_dict()

    def load_state_dict(self, state_dict: State) -> None:
        """Torch would bring all of it to the parameters' device first."""
        super().load_state_dict({**state_dict, "state": {}})
        several = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, saved in state_dict["state"].items():
            held = self.make_state(several[int(number)])
            for name, value in saved.items():
                held[name].copy_(value)

    @staticmethod
    def _elsewhere(parameter: Tensor) -> bool:
        return parameter.device.type != "cpu"

    def _stream(self, parameter: Tensor, grad: Tensor, state: State, group: State) -> None:
        """An update of a parameter that is not where its moments are."""
        if (lane := self._lanes.get(parameter.device)) is None:
            largest = max(each.numel() for group in self.param_groups for each in group["params"])
            lane = self._lanes[parameter.device] = _Lane(parameter.device, min(CHUNK, largest))
            lane.begin()
        held, grad = parameter.view(-1), grad.view(-1)
        moments = [state[name].view(-1) for name in MOMENTS]
        # On the device, where the kernel reads it; each call counts it up by one.
        step = torch.full((), float(state["step"]), device=parameter.device)
        for start in range(0, len(held), CHUNK):
            here = slice(start, start + CHUNK)
            with lane.brought([each[here] for each in moments]) as (mean, square):
                _move(held[here], grad[here], mean, square, step.clone(), group)


def lane_bytes(learned: int) -> int:
    """Of a GPU's memory at most, where so many parameters learn."""
    return UNDER_WAY * len(MOMENTS) * min(CHUNK, learned) * torch.float32.itemsize


class _Lane:
    """Brings stretches of host memory to a device and back again, beside what is computed there."""

    def __init__(self, device: torch.device, size: int):
        self.device, self._number = device, 0
        self._rooms = [torch.empty(len(MOMENTS), size, device=device) for _ in range(UNDER_WAY)]
        self._inward, self._outward = (torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(2))
        self._free: list[torch.cuda.Event | None] = [None] * UNDER_WAY

    def begin(self) -> None:
        """An update begins: what the last one took back is there before it is brought again."""
        if self._inward is not None and self._outward is not None:
            self._inward.wait_stream(torch.cuda.current_stream(self.device))
            self._inward.wait_stream(self._outward)

    def end(self) -> None:
        """Waits until all is back."""
        if self._outward is not None:
            self._outward.synchronize()

    @contextmanager
    def brought(self, held: list[Tensor]) -> Iterator[list[Tensor]]:
        """Copies on the device of equally long stretches, which are written back when the block ends."""
        place = self._number % UNDER_WAY
        self._number += 1
        rooms = [room[: len(own)] for room, own in zip(self._rooms[place], held, strict=True)]
        computing = None if self._inward is None else torch.cuda.current_stream(self.device)
        ready = _copied(self._inward, self._free[place], rooms, held)
        if computing is not None and ready is not None:
            computing.wait_event(ready)
        yield rooms
        self._free[place] = _copied(self._outward, None if computing is None else computing.record_event(), held, rooms)


def _copied(
    stream: torch.cuda.Stream | None, after: torch.cuda.Event | None, to: list[Tensor], held: list[Tensor]
) -> torch.cuda.Event | None:
    """Copies on a stream, behind an event; the event behind them."""
    with torch.cuda.stream(stream):  # type: ignore[arg-type]
        if stream is not None and after is not None:
            stream.wait_event(after)
        for target, source in zip(to, held, strict=True):
            target.copy_(source, non_blocking=True)
        return None if stream is None else stream.record_event()


def _move(held: Tensor, grad: Tensor, mean: Tensor, square: Tensor, step: Tensor, group: State) -> None:
    beta1, beta2 = group["betas"]
    adamw(
        [held], [grad], [mean], [square], [], [step], fused=True, amsgrad=False, maximize=False, beta1=beta1, beta2=beta2,
        lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
    )  # fmt: skip
