"""Opponents: who answers beside the policy, and the loss of Nash-MD on what comparing the two gives."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from small_learner import SIZES, Paid, learner
from torch import Tensor

from upslope.errors import MethodError
from upslope.evolve.opponents import Opponents
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.objective import estimator
from upslope.objective.advantage import RawReward
from upslope.objective.base import Data
from upslope.objective.filter.fresh import OnlyFresh
from upslope.objective.regularize import ReferenceKL
from upslope.setting_up import set_up
from upslope.tasks.turns import speaker_label
from upslope.types import Source, Trajectories, View


@dataclass(frozen=True)
class BeatsOpponent(Data):
    """For tests: pays the chance of each answer against the other of its pair, as Bradley and Terry have it, and keeps the rows."""

    def __call__(self, rows, context):
        half = rows.rows // 2
        assert rows.group[:half].tolist() == rows.group[half:].tolist() == list(range(half))
        gap = rows.reward[:half] - rows.reward[half:]
        LOOKED.append(rows)
        return rows.replace(reward=torch.cat([gap, -gap]).sigmoid())


LOOKED: list[Trajectories] = []


def nash(share: float = 0.5, weight: float = 0.1):
    return find("reinforce").derive(
        name="nash",
        data=(Opponents(share=share), BeatsOpponent()),
        filter=OnlyFresh(),
        advantage=RawReward(baseline=0.5),
        regularize=ReferenceKL(weight=weight, estimator="k2", limit=float("inf")),
    )


def test_each_answer_gets_an_opponent_and_only_the_policy_learns():
    made = learner(nash())
    made.step(1)
    found = made.step(2)
    rows, learned = LOOKED[-1], made.last
    assert learned is not None
    half = rows.rows // 2
    assert half == 16 and rows.task[:half].tolist() == rows.task[half:].tolist()
    assert rows.label["speaker"].tolist() == [speaker_label("policy")] * half + [speaker_label("0.5 policy + 0.5 start")] * half
    assert rows.label["source"][half:].tolist() == [Source.FURTHER] * half and rows.info[-1]["role"] == "opponent"
    assert torch.equal(learned.key[:, 0], rows.key[:half, 0]), "rows of opponents are learned from by nobody"
    chance = (rows.reward[:half] - rows.reward[half:]).sigmoid()
    assert torch.allclose(learned.advantage, (chance - 0.5).unsqueeze(1) * learned.sampled, atol=1e-6)
    assert found["further_samples"] == half and found["samples"] == 2 * half


@pytest.mark.parametrize(("share", "keeps"), [(0.0, False), (1.0, True)])
def test_the_ends_are_self_play_and_the_reference(share, keeps):
    made = set_up(nash(share, weight=0.0), "reverse", "tiny:layers=1,width=32", SIZES)
    made.rollout.task = Paid(made.task)
    alone = PolicyGradient(made.method, made.policy, made.rollout, made.settings)
    assert ("start" in alone.references.kept) is keeps
    start = made.policy.frozen_copy()
    alone.step(1)
    before = made.policy.frozen_copy()
    alone.step(2)
    rows = LOOKED[-1].take_rows(LOOKED[-1].label["source"] == int(Source.FURTHER))
    on, speaker = rows.sampled > 0, start if share else before
    with torch.no_grad():
        assert torch.allclose(speaker.evaluate(rows).logp[on], rows.behavior.logp[on], atol=1e-5)
        other = (before if share else start).evaluate(rows).logp
    assert not torch.allclose(other[on], rows.behavior.logp[on], atol=1e-4)


def test_one_sample_of_a_task_is_enough():
    made = set_up(find("nash-md"), "reverse", "tiny:layers=1,width=32", dataclasses.replace(SIZES, samples_per_task=1))
    made.rollout.task = Paid(made.task)
    found = PolicyGradient(made.method, made.policy, made.rollout, made.settings, made.policy.frozen_copy()).step(1)
    assert found["samples"] == 2 * SIZES.tasks_per_step and found["learning"] > 0


def test_rows_of_other_steps_get_no_opponent():
    nobody = torch.zeros(2, dtype=torch.int64)
    rows = Trajectories(torch.ones(2, 1), torch.zeros(2), nobody, nobody, View(-torch.ones(2, 1)))
    rows = rows.replace(label={"source": torch.tensor([int(Source.FRESH), int(Source.FURTHER)])})
    with pytest.raises(MethodError, match="before the other data parts"):
        Opponents()(rows, None)


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_the_gradient_is_that_of_the_formula(beta: float):
    """Two answers, of two tokens and of one, that beat their opponents with chances 0.8 and 0.3.

    L = -(P - 1/2) log p + beta sum_t sg(lr_t) log p_t, mean over answers. With lr = (0.5, -1.0) and (0.2):
        dL/dlogp = ((-0.3 + 0.5 beta)/2, (-0.3 - beta)/2)   and   (0.2 + 0.2 beta)/2.
    """
    logp = torch.tensor([[-1.0, -2.0], [-0.7, 0.0]], requires_grad=True)
    other = View(torch.tensor([[-1.5, -1.0], [-0.9, 0.0]]))
    rows = Trajectories(
        sampled=torch.tensor([[1.0, 1.0], [1.0, 0.0]]),
        reward=torch.tensor([0.8, 0.3]),
        group=torch.tensor([0, 1]),
        task=torch.tensor([5, 6]),
        behavior=View(logp.detach()),
        reference={"start": other},
    )
    method = nash(weight=beta).derive(data=())
    grad = gradient(method, rows, logp)
    wanted = torch.tensor([[-0.3 + 0.5 * beta, -0.3 - beta], [0.2 + 0.2 * beta, 0.0]]) / 2
    assert torch.allclose(grad, wanted, atol=1e-7)
    plain = find("reinforce").derive(advantage=RawReward(baseline=0.5))
    assert torch.equal(gradient(nash(weight=0.0).derive(data=()), rows, logp), gradient(plain, rows, logp))


def gradient(method, rows: Trajectories, logp: Tensor) -> Tensor:
    """Of the whole update, in the log-probabilities."""
    update = estimator.begin_update(method, estimator.annotate(method, rows)).replace(current=View(logp))
    losses, _ = estimator.decision_losses(method, update)
    (grad,) = torch.autograd.grad(losses.sum(), logp)
    return grad


def test_a_baseline_that_is_known_beforehand():
    nobody = torch.zeros(2, dtype=torch.int64)
    rows = Trajectories(torch.ones(2, 1), torch.tensor([1.0, 0.25]), nobody, nobody, View(-torch.ones(2, 1)))
    assert RawReward()(rows).squeeze(1).tolist() == [1.0, 0.25]
    assert RawReward(baseline=0.5)(rows).squeeze(1).tolist() == [0.5, -0.25]
