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
from upslope.run.learner import Begin, SampledElsewhere, serve
from upslope.runtime.team import ALONE, ProcessTeam, Team
from upslope.runtime.team_lead import TeamPlan
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
    bench: Any = set_up(method, task_for(method), "tiny:layers=1,width=16", dataclasses.replace(SIZES, **changes))
    bench.policy.token_budget = lambda: 100
    bench.rollout.task = Paid(bench.task)
    rollout = SampledElsewhere(bench.rollout) if elsewhere else bench.rollout
    stages = {name: SampledElsewhere(each) if elsewhere else each for name, each in bench.stage_rollouts.items()}
    return make_learner(bench.method, bench.policy, rollout, bench.settings, bench.policy.frozen_copy(), stages, team)


def gradients(learner: Any) -> dict[str, torch.Tensor]:
    """Of the last update, after it was clipped."""
    found = {f"{name} {number}": each.grad for name, some in learner.policy.trainable().items() for number, each in enumerate(some)}
    return {name: grad.clone() for name, grad in found.items() if grad is not None}


def begin_cases() -> Begin:
    return lambda told, team: made((told["method"], told["settings"]), team, elsewhere=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    number, rank, size = map(int, sys.argv[1:])
    sys.exit(serve(number, ProcessTeam(rank, size), begin_cases))
