"""AsyncFlow: what older weights sampled counts by its importance, and only that; sampling ahead repeats to the bit."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from batches import assert_same, gradient
from small_learner import SIZES, learner, weights

from upslope.errors import UserError
from upslope.methods import compose, find
from upslope.objective.filter.stale import Stale
from upslope.objective.weight.truncated import Truncated
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.setting_up.where import corrects_for_age
from upslope.types import Batch, View

asyncflow, grpo = find("asyncflow"), find("grpo")
MODEL = "tiny:layers=1,width=16"


def dated(batch: Batch, ages: list[int]) -> Batch:
    """The batch with rows of these ages, drawn by somebody else than the policy before the step."""
    noise = torch.randn(batch.sampled.shape, generator=torch.Generator().manual_seed(1), dtype=batch.proximal.logp.dtype)
    version = (7 - torch.tensor(ages)).unsqueeze(1).expand(batch.sampled.shape)
    return batch.replace(behavior=View(batch.proximal.logp.detach() + 0.4 * noise), version=version, now=7)


@pytest.mark.checks("identity", "asyncflow")
def test_what_the_weights_of_now_sampled_is_learned_as_grpo_does(ragged_batch: Batch):
    fresh = dated(ragged_batch, [0] * ragged_batch.rows)
    assert torch.equal(Truncated()(fresh), torch.ones_like(fresh.sampled)) and bool(Stale(0.0)(fresh).all())
    assert_same(gradient(asyncflow, fresh), gradient(grpo, fresh), rtol=0, atol=0)
    assert_same(gradient(asyncflow, ragged_batch), gradient(grpo, ragged_batch), rtol=0, atol=0)


@pytest.mark.checks("identity", "asyncflow")
@pytest.mark.parametrize("updates", [1, 2])
def test_without_staleness_a_run_is_grpos_to_the_bit(updates):
    settings = dataclasses.replace(SIZES, updates_per_step=updates)
    ours, theirs = learner("asyncflow", settings), learner("grpo", settings)
    for step in (1, 2, 3):
        ours.step(step), theirs.step(step)
    assert torch.equal(weights(ours), weights(theirs))


@pytest.mark.checks("oracle", "asyncflow")
def test_a_worked_example():
    """Importance 0.5/0.25 = 2 is cut at 1.5; 0.2/0.4 stays 0.5; of now, and of nobody, it is 1."""
    now, then = torch.tensor([[0.5, 0.2, 0.9, 0.3]]), torch.tensor([[0.25, 0.4, 0.1, math.nan]])
    batch = Batch(
        sampled=torch.ones(1, 4), reward=torch.zeros(1), group=torch.zeros(1, dtype=torch.int64), task=torch.zeros(1),
        behavior=View(then.log()), proximal=View(now.log()), version=torch.tensor([[3, 2, 4, 1]]), now=4,
    )  # fmt: skip
    torch.testing.assert_close(Truncated(cap=1.5)(batch), torch.tensor([[1.5, 0.5, 1.0, 1.0]]))
    assert (
        Stale(3.0)(batch).tolist() == [True] and Stale(2.0)(batch).tolist() == [False] and Stale(math.inf)(batch).tolist() == [True]
    )


# -- who may sample ahead --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["minirl", "remix", "asyncflow", "sft"])
def test_methods_that_divide_by_who_sampled_correct_for_age(name):
    assert corrects_for_age(find(name))


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "gspo", "dapo", "reinforce", "online-dpo"])
def test_others_are_refused_with_the_cure_unless_they_insist(name):
    method, ahead = find(name), Settings(max_staleness=1, warm_start=0.0)
    with pytest.raises(UserError, match=r"\+asyncflow, which corrects"):
        set_up(method, "reverse:length=2", MODEL, ahead)
    set_up(method, "reverse:length=2", MODEL, dataclasses.replace(ahead, uncorrected=True))


@pytest.mark.parametrize("name", ["dhpo", "dapo", "t-ppo", "gspo"])
def test_it_is_composed_with_others(name):
    made = compose([find(name), asyncflow])
    assert corrects_for_age(made) and any(isinstance(part, Stale) for part in made.filter)


def test_what_does_not_go_together_is_refused():
    def refused(text: str, **settings):
        with pytest.raises(UserError, match=text):
            set_up(asyncflow, "reverse:length=2", MODEL, Settings(warm_start=0.0, **settings))

    refused("more than the 4 problems", shares=5, tasks_per_step=4)
    refused("--pace free", pace="free")
    refused("--pace free", pace="free", workers=1)
    refused("holds weights of its own", workers=1, engine="http://127.0.0.1:1")


# -- sampling ahead --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("name", ["asyncflow", "minirl"])
def test_rows_are_as_old_as_they_may_be_and_runs_repeat(name, staleness):
    settings = dataclasses.replace(SIZES, max_staleness=staleness, steps=6)
    one, other = learner(name, settings), learner(name, settings)
    for step in range(1, 7):
        for made in (one, other):
            made.step(step)
        age = one.last.age()[one.last.sampled > 0] if one.last is not None else torch.zeros(1)
        assert int(age.max()) == min(step - 1, staleness)
    assert torch.equal(weights(one), weights(other))


def test_truncation_changes_what_is_learned_from_older_rows():
    settings = dataclasses.replace(SIZES, max_staleness=2, steps=5, lr=1e-2)
    ours, theirs = learner("asyncflow", settings), learner("grpo", dataclasses.replace(settings, uncorrected=True))
    for step in range(1, 6):
        ours.step(step), theirs.step(step)
    assert not torch.equal(weights(ours), weights(theirs))


def test_a_run_that_samples_ahead_goes_on_after_a_stop_as_if_never_stopped():
    settings = dataclasses.replace(SIZES, max_staleness=2, steps=6)
    whole, first, second = (learner("asyncflow", settings) for _ in range(3))
    for step in range(1, 7):
        whole.step(step)
    for step in range(1, 4):
        first.step(step)
    second.policy.load_weights({name: tensor.clone() for name, tensor in first.policy.weights().items()})
    second.load_state(first.state())
    for step in range(4, 7):
        second.step(step)
    assert torch.equal(weights(whole), weights(second))
