"""Phases: which steps of a run belong to which of its stages, and which to the method itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from upslope.errors import UserError
from upslope.types import Method


@dataclass(frozen=True)
class Phase:
    """The steps of a run in which one method learns.

    Fields:
        first: its first step; that of the run is 1.
        steps: how many it has.
        lr_scale: what the run's learning rate is multiplied with.
        optimizer: the run's, where several methods share it.
    """

    first: int = 1
    steps: int = 1
    lr_scale: float = 1.0
    optimizer: torch.optim.Optimizer | None = None

    @property
    def last(self) -> int:
        """Its last step."""
        return self.first + self.steps - 1

    def progress(self, step: int) -> float:
        """The share of its steps that are done before this one."""
        return (step - self.first) / max(self.steps, 1)


def last_steps(method: Method, steps: int) -> list[int]:
    """The last step of each stage in a run of so many, and then that of the method itself, which is the run's."""
    share, ends = 0.0, list[int]()
    for stage in method.stages:
        share += stage.share
        ends.append(round(share * steps))
    return [*ends, steps]


def check_steps(method: Method, steps: int) -> None:
    """Refuses a run in which a stage, or the method behind them, would have no step at all."""
    ends = last_steps(method, steps)
    called = [*(f"its stage {stage.name!r} (share {stage.share:g})" for stage in method.stages), "the method itself"]
    for name, before, end in zip(called, [0, *ends], ends, strict=False):
        if steps and end <= before:
            least = next(more for more in range(steps + 1, 1_000_000) if _all_have_steps(method, more))
            raise UserError(f"--steps {steps} of {method.name} leaves no step for {name}. Give at least {least}, or other shares.")


def _all_have_steps(method: Method, steps: int) -> bool:
    ends = last_steps(method, steps)
    return all(before < end for before, end in zip([0, *ends], ends, strict=False))
