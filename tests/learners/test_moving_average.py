"""A reference is a part: a moving average of the policy runs without a line in the learner."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.objective.references import MovingAverage
from upslope.objective.regularize import ReferenceKL
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up

SIZES = Settings(tasks_per_step=4, samples_per_task=4, warm_start=0.0, eval_problems=4, max_tokens=5, steps=10, lr=1e-3, warmup=0,
                 watch_kl=False)  # fmt: skip


METHOD = find("grpo").derive(
    name="averaged", references={"average": MovingAverage(0.75)}, regularize=ReferenceKL(weight=0.1, reference="average")
)


def learner(method=METHOD, settings=SIZES) -> PolicyGradient:
    made = set_up(method, "reverse", "tiny:layers=1,width=32", settings)
    object.__setattr__(made.rollout.task, "score", _letters(made.rollout.task.score))  # an untrained model earns nothing else
    return PolicyGradient(made.method, made.policy, made.rollout, made.settings)


def _letters(score):
    def scored(problems, responses):
        found = score(problems, responses)
        return dataclasses.replace(found, reward=[sum(map(str.isalpha, text)) / 5 for text in responses])

    return scored


def test_the_average_follows_the_policy():
    made = learner()
    expected = {name: tensor.clone() for name, tensor in made.policy.weights().items()}
    for step in (1, 2, 3):
        if step > 1:
            for name, tensor in made.policy.weights().items():
                expected[name] += 0.25 * (tensor - expected[name])
        before = {name: tensor.clone() for name, tensor in made.policy.weights().items()}
        made.step(step)
        assert any(not tensor.equal(before[name]) for name, tensor in made.policy.weights().items()), "it learns"
        found = made.references.compared(METHOD, "average").weights()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor)
    assert made.last is not None and "average" in made.last.reference and "start" not in made.references.kept


def test_a_resumed_run_has_the_same_average():
    whole, cut = learner(), learner()
    for step in (1, 2, 3, 4):
        whole.step(step)
    for step in (1, 2):
        cut.step(step)
    again = learner()
    again.policy.load_weights({name: tensor.clone() for name, tensor in cut.policy.weights().items()})
    again.load_state(cut.state())
    for step in (3, 4):
        again.step(step)
    for name, tensor in whole.policy.weights().items():
        assert again.policy.weights()[name].equal(tensor), name
    ours, theirs = (made.references.compared(METHOD, "average").weights() for made in (again, whole))
    assert all(ours[name].equal(theirs[name]) for name in theirs)


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_its_ends_are_the_policy_before_the_step_and_the_start(decay):
    made = learner(METHOD.with_knobs({"references.average.decay": decay}))
    first = {name: tensor.clone() for name, tensor in made.policy.weights().items()}
    made.step(1)
    before = {name: tensor.clone() for name, tensor in made.policy.weights().items()}
    made.step(2)
    wanted = first if decay else before
    assert all(tensor.equal(wanted[name]) for name, tensor in made.references.compared(METHOD, "average").weights().items())
