"""MoPPS: without its choice it is grpo; its posterior is that of the answers it sampled."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, gradient, random_batch
from small_learner import learner, weights

from upslope.methods import find

mopps, grpo = find("mopps"), find("grpo")


@pytest.mark.checks("identity", "mopps")
@pytest.mark.parametrize("mode", ["topk", "threshold"])
def test_with_one_candidate_for_each_problem_it_is_grpo(mode):
    assert_same(gradient(mopps, random_batch(seed=2)), gradient(grpo, random_batch(seed=2)), exact=True)
    ours, theirs = learner(mopps.with_knobs({"curriculum.candidates": 1, "curriculum.mode": mode})), learner(grpo)
    for step in (1, 2, 3):
        ours.step(step)
        theirs.step(step)
    assert torch.equal(weights(ours), weights(theirs))


@pytest.mark.checks("oracle", "mopps", by="counting the answers of a run")
def test_the_posterior_counts_the_answers():
    made, successes, answers = learner(mopps), {}, {}
    for step in (1, 2, 3):
        told = made.step(step)
        for task, reward in zip(made.last.task.tolist(), made.last.reward.tolist(), strict=True):
            successes[task], answers[task] = successes.get(task, 0) + reward, answers.get(task, 0) + 1
    state = made.states["memory.posterior"]
    assert state["task"].tolist() == sorted(answers)
    for task, success, failure in zip(*(state[name].tolist() for name in ("task", "success", "failure")), strict=True):
        assert success == pytest.approx(1 + successes[task]) and failure == pytest.approx(1 + answers[task] - successes[task])
    assert 0 < told["chosen_posterior"] < 1 and abs(told["chosen_drawn"] - 0.5) < 0.1
