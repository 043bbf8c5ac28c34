"""Updates hold whole units of what a method must see at once, whatever the policy could be cut into."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from rollout_calls import collect
from torch import Tensor

from upslope.errors import MethodError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.learners.updates.decisions import DecisionUpdater
from upslope.learners.updates.rows import RowUpdater
from upslope.methods import find
from upslope.objective.base import Filter
from upslope.objective.ratio import SequenceRatio
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.types import Batch, Method

SIZES = Settings(steps=4, envs=4, horizon=16, minibatch=16, passes=2, eval_problems=1, lr=1e-3, warmup=0)


def learner(method: Method, settings: Settings = SIZES) -> PolicyGradient:
    made = set_up(method, "gym:CartPole-v1", "tiny", settings)
    return PolicyGradient(made.method, made.policy, made.rollout, made.settings)


def weights(made: PolicyGradient) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for group in made.policy.trainable().values() for p in group])


def test_a_ratio_of_sequences_is_not_cut_into_decisions():
    ppo = find("ppo")
    by_sequence = ppo.derive(name="ppo-sequence", ratio=SequenceRatio())
    plain, wide = learner(ppo), learner(by_sequence)
    assert isinstance(plain.updater(plain.method), DecisionUpdater) and isinstance(wide.updater(wide.method), RowUpdater)
    found = [(made.step(1), weights(made)) for made in (plain, wide)]
    assert found[0][0]["updates"] == found[1][0]["updates"] == 8, "a row of 16 decisions is a minibatch of 16"
    assert (found[0][1] - found[1][1]).abs().max() > 1e-6, "another ratio, another policy"


def test_updates_of_rows_hold_whole_rows_and_all_of_them():
    made = learner(find("ppo").derive(name="ppo-sequence", ratio=SequenceRatio()))
    rows = collect(made.rollout, 1)
    shares = made.updater(made.method).shares(rows, torch.Generator().manual_seed(0))
    assert [share.sampled.shape for share in shares] == [(1, 16)] * 4
    assert sorted(int(share.group) for share in shares) == sorted(rows.group.tolist())


def test_one_update_is_the_same_by_rows_and_by_decisions():
    settings = Settings(steps=4, envs=4, horizon=16, updates_per_step=1, passes=1, eval_problems=1, lr=1e-3, warmup=0)
    both = []
    for updater in (DecisionUpdater, RowUpdater):
        made = learner(find("ppo"), settings)
        if updater is RowUpdater:
            made.updater = lambda method, *beside, made=made: RowUpdater(method, made.views, made.optimizer_step, made.settings)  # type: ignore[method-assign]
        made.step(1)
        both.append(weights(made))
    torch.testing.assert_close(*both, rtol=0, atol=2e-6)


@dataclass(frozen=True)
class DropsAndRefills(Filter):
    refill: bool = True
    rounds: int = 2

    def __call__(self, batch: Batch) -> Tensor:
        return torch.ones(batch.rows, dtype=torch.bool)


def test_what_only_a_rollout_over_tasks_can_do_is_refused_in_an_environment():
    with pytest.raises(MethodError, match=r"ppo has a filter that samples other tasks.*an environment is one task"):
        learner(find("ppo").derive(filter=DropsAndRefills()))
