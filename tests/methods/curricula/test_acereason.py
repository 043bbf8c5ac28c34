"""AceReason: stages of pools and token limits, on-policy."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, gradient, random_batch
from small_learner import learner, weights

from upslope.methods import find
from upslope.objective.curriculum import Pools, PoolStage

acereason, grpo = find("acereason"), find("grpo")
SHORT_FIRST = Pools(candidates=1, stages=(PoolStage(until=0.3, limit=2), PoolStage(limit=4)))


@pytest.mark.checks("identity", "acereason")
def test_with_its_changes_taken_back_it_is_grpo():
    batch = random_batch(seed=2)
    reverted = acereason.derive(aggregate=grpo.aggregate, regularize=grpo.regularize)
    assert_same(gradient(reverted, batch), gradient(grpo, batch), exact=True)
    ours, theirs = learner(reverted.derive(curriculum=Pools(candidates=1))), learner(grpo)
    for step in (1, 2, 3):
        ours.step(step)
        theirs.step(step)
    assert torch.equal(weights(ours), weights(theirs))


@pytest.mark.checks("oracle", "acereason", by="lengths of a run of ten steps")
def test_the_limit_grows_with_the_stages():
    made = learner(acereason.derive(curriculum=SHORT_FIRST))
    told = [made.step(step) for step in range(1, 6)]
    assert [step["token_limit"] for step in told] == [2, 2, 2, 4, 4] and [step["stage"] for step in told] == [1, 1, 1, 2, 2]
    assert all(step["longest"] <= step["token_limit"] for step in told) and told[-1]["longest"] > 2
    assert made.last.horizon == 4


def test_with_one_update_a_step_the_clip_never_acts():
    made = learner(acereason)
    told = [made.step(step) for step in (1, 2, 3)]
    assert all(step["clip_fraction"] == 0 and step["log_ratio"] == 0 for step in told)


def test_the_stages_of_the_paper_are_knobs():
    changed = acereason.with_knobs({"curriculum.stages.0.limit": 16, "curriculum.stages.3.category": "code"})
    assert changed.curriculum.stages[0].limit == 16 and changed.curriculum.stages[3].category == "code"
