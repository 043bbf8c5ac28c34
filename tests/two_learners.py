"""Two learners of a small language model: this process and one beside it, which makes the same learner from a name.

Started as a program it is the one beside; `learners/test_two_learners.py` is the one that tells it what to learn.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch
from small_learner import SIZES, Paid, task_for

from upslope.learners.base import make_learner
from upslope.methods import find
from upslope.plain_data import JsonDict
from upslope.policies.sharded import shard
from upslope.run.learner import Begin, SampledElsewhere, serve
from upslope.runtime.team import ALONE, ProcessTeam, Team
from upslope.runtime.team_lead import TeamPlan
from upslope.runtime.tensor_parts import put_together
from upslope.setting_up import set_up

Case = tuple[str, JsonDict]
"""A method, and settings that differ from `SIZES`."""
SMOOTH: JsonDict = {"reuse": "off", "adam_eps": 1e-3}
"""With Adam's usual divisor a gradient of 1e-9 moves a weight as far as one of 1, to either side."""


class ByCase(TeamPlan):
    """Learners that are told which case they are."""

    def command(self, rank: int, channel: int) -> list[str]:
        return [sys.executable, __file__, str(channel), str(rank), str(self.size)]


def made(case: Case, team: Team = ALONE, elsewhere: bool = False) -> Any:
    """The learner of a case, whose slices hold a few rows; ``elsewhere`` it is sent rows."""
    method, changes = find(case[0]), SMOOTH | case[1]
    if team is ALONE:
        changes |= {"learners": 1, "shard": False}
    bench: Any = set_up(method, task_for(method), "tiny:layers=1,width=16", dataclasses.replace(SIZES, **changes))
    bench.policy.token_budget = lambda: 100
    bench.rollout.task = Paid(bench.task)
    rollout = SampledElsewhere(bench.rollout) if elsewhere else bench.rollout
    stages = {name: SampledElsewhere(each) if elsewhere else each for name, each in bench.stage_rollouts.items()}
    policy = shard(bench.policy, keep=not elsewhere) if bench.settings.shard else bench.policy
    learner = make_learner(bench.method, policy, rollout, bench.settings, policy.frozen_copy(), stages, team)
    if bench.settings.shard:
        note_gradients(learner)
    return learner


def note_gradients(learner: Any) -> None:
    """Puts the gradients of each update together as soon as it is made: all processes of the team do so at once."""
    step = getattr(learner, "learner", learner).optimizer_step
    apply = step.apply

    def noted(norm: float, sums: Any) -> bool:
        moved, grads = apply(norm, sums), gradients(learner, parts=True)
        learner.grads = {name: put_together(grad) for name, grad in grads.items()}
        return moved

    step.apply = noted


def gradients(learner: Any, parts: bool = False) -> dict[str, torch.Tensor]:
    """Of the last update, after it was clipped: whole, or in ``parts`` where they are."""
    if hasattr(learner, "grads") and not parts:
        return learner.grads
    found = {f"{name} {number}": each.grad for name, some in learner.policy.trainable().items() for number, each in enumerate(some)}
    return {name: grad.clone() for name, grad in found.items() if grad is not None}


def begin_cases() -> Begin:
    return lambda told, team: made((told["method"], told["settings"]), team, elsewhere=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    number, rank, size = map(int, sys.argv[1:])
    sys.exit(serve(number, ProcessTeam(rank, size), begin_cases))
