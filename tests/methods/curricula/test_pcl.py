"""PCL: a head that reads prompts, learns beside the policy and leaves it alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch
from small_learner import SIZES, learner

from upslope.methods import find
from upslope.objective.models.prompt_value import PromptValue
from upslope.tasks.text import Scores
from upslope.testing.batches import with_needs

pcl, grpo = find("pcl"), find("grpo")
HEAD = "prompt_value"


def body(made) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in made.policy.trainable()["policy"]])


@pytest.mark.checks("identity", "pcl")
def test_without_its_value_and_choice_it_is_grpo():
    off = pcl.with_knobs({"curriculum.candidates": 1, f"models.{HEAD}.weight": 0.0})
    batch = random_batch(seed=2)
    assert_same(gradient(off, with_needs(batch, off)), gradient(grpo, batch), exact=True)
    ours, theirs = learner(off), learner(grpo)
    for step in (1, 2, 3):
        ours.step(step)
        theirs.step(step)
    assert torch.equal(body(ours), body(theirs))


def test_a_value_that_only_reads_learns_and_the_policy_does_not_notice():
    """Bit for bit, but for the bound on the gradient norm, which is of both together: it is off here."""
    settings = dataclasses.replace(SIZES, grad_clip=0.0)
    apart = pcl.with_knobs({"curriculum.candidates": 1, f"models.{HEAD}.shared": False})
    ours, theirs = learner(apart, settings), learner(grpo, settings)
    before = ours.policy.heads[HEAD].weight.clone()
    for step in (1, 2, 3):
        ours.step(step)
        theirs.step(step)
    assert torch.equal(body(ours), body(theirs)) and not torch.equal(ours.policy.heads[HEAD].weight, before)


@pytest.mark.checks("oracle", "pcl", by="the sum over groups, written out")
def test_the_loss_is_that_of_each_group_once():
    batch = with_needs(random_batch(seed=5, groups=3, samples=4, empty_rows=1), pcl)
    part, model = PromptValue(weight=3.0), batch.current[HEAD]
    loss = part(batch.replace(prepared={part: part.prepare(batch)}))
    expected = torch.zeros((), dtype=torch.float64)
    for group in batch.group.unique():
        rows = [row for row in (batch.group == group).nonzero().squeeze(1).tolist() if batch.sampled[row].any()]
        success = batch.reward[batch.group == group].clamp(0, 1).mean()
        first = [int(batch.sampled[row].nonzero()[0]) for row in rows]
        own = torch.stack([(model[row, place].sigmoid() - success) ** 2 for row, place in zip(rows, first, strict=True)])
        expected = expected + own.mean() / 3
    torch.testing.assert_close(loss.sum(), 3.0 * expected)
    assert int((loss != 0).sum()) == int((batch.sampled.sum(1) > 0).sum()), "one decision of each row"


def test_the_value_is_read_at_the_end_of_prompts_and_told():
    made = learner(pcl)
    told = made.step(1)
    rows, chosen = made.last, [note["chosen"]["value"] for note in made.last.info]
    made = learner(pcl)
    with torch.no_grad():
        value = made.policy.evaluate(rows, frozenset({HEAD}))[HEAD][:, 0].sigmoid()
    torch.testing.assert_close(value, torch.tensor(chosen), rtol=1e-3, atol=1e-4)
    assert told["chosen_value"] == pytest.approx(sum(chosen) / len(chosen), abs=1e-3)


@pytest.mark.slow
def test_the_value_comes_to_know_which_prompts_succeed():
    """Half of the problems always earn full marks, by the last of their letters, the others nothing."""

    class ByFirstLetter:
        def __init__(self, task):
            self.task, self.name, self.max_tokens = task, task.name, 5
            self.separator, self.answer_class = task.separator, task.answer_class

        def sample(self, *arguments):
            return self.task.sample(*arguments)

        def score(self, problems, responses):
            reward = [float(problem.prompt[5] < "f") for problem in problems]
            return Scores(reward, [value == 1 for value in reward])

    settings = dataclasses.replace(SIZES, tasks_per_step=16, samples_per_task=2, steps=60, lr=1e-2, max_tokens=2)
    made = learner(pcl.with_knobs({"curriculum.candidates": 1}), settings)
    made.rollout.task = ByFirstLetter(made.rollout.task)
    for step in range(1, 61):
        made.step(step)
    problems = made.rollout.task.sample(200, "test", np.random.default_rng(0))
    value = made.rollout.prompt_values(problems, HEAD).sigmoid()
    success = torch.tensor([float(problem.prompt[5] < "f") for problem in problems])
    explained = 1 - (success - value).var() / success.var()
    assert explained > 0.9
