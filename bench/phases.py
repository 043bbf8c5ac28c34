"""Where the time of a step goes: the calls a learner makes are watched from outside, each second counted once.

A phase that begins inside of another stops the other's clock, so the parts add up to the whole; ``other`` is what is left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

PHASES = ("sampling", "reward", "forward", "backward", "optimiser", "other")


class Phases:
    """Seconds by phase."""

    def __init__(self, device: str = "cpu"):
        self.device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._open = ["other"]
        self._since = time.perf_counter()

    def _turn(self) -> None:
        """Books the time since the last change on the phase that was open. On a GPU its queue is waited for."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with its time booked on a phase."""

        def watched(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self._open.append(phase)
            try:
                return call(*arguments, **named)
            finally:
                self._turn()
                self._open.pop()

        return watched

    def finished(self) -> dict[str, float]:
        self._turn()
        return dict(self.seconds)


@contextlib.contextmanager
def watching(learner: Any, task: Any, device: str) -> Iterator[Phases]:
    """Books what a text learner does by phase, as long as this is open."""
    import torch

    phases = Phases(device)
    watched = [
        (learner.rollout.engine, "generate", "sampling"),
        (task, "score", "reward"),
        (learner.policy, "evaluate", "forward"),
        (torch.autograd, "backward", "backward"),
        (learner.optimizer, "step", "optimiser"),
    ]
    before = [(holder, name, vars(holder).get(name)) for holder, name, _ in watched]
    for holder, name, phase in watched:
        setattr(holder, name, phases.timed(phase, getattr(holder, name)))
    try:
        yield phases
    finally:
        for holder, name, own in before:
            if own is None:
                delattr(holder, name)  # the class has it
            else:
                setattr(holder, name, own)
