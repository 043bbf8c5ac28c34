"""One-token rollouts: supervised fine-tuning as a policy gradient on the policy's own tokens."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, gradient, replace_view
from small_models import policy_of
from torch import Tensor

import upslope as up
from upslope.errors import MethodError
from upslope.learners.metrics import MetricSums
from upslope.learners.updates.column_grads import as_leaf, column_grads
from upslope.methods import find
from upslope.objective.estimator import annotate, begin_update
from upslope.objective.surrogate.one_token import OneTokenRollout
from upslope.policies import LanguageModel
from upslope.rollout.text_rows import token_rows
from upslope.testing.batches import batch_for
from upslope.types import Method, Trajectories, decision_keys

otr, sft = find("otr"), find("sft")
PROMPTS, ANSWERS = [[1, 5, 9], [1, 4, 4, 8], [1]], [[7, 8, 2], [12, 2], [5, 5, 5, 5, 2]]


def _rows(policy: LanguageModel, seed: int = 0) -> Trajectories:
    rows = token_rows(policy, PROMPTS, ANSWERS)
    return rows.replace(key=decision_keys(torch.arange(rows.rows) + 100 * seed, rows.sampled.shape[1]))


def _step(method: Method, policy: LanguageModel, rows: Trajectories) -> dict[str, Tensor]:
    """Gradient of an update as the learner makes it."""
    policy.model.zero_grad()
    rows = begin_update(method, annotate(method, rows))
    probes = tuple(probe for _, part in method.parts() for probe in part.probes())
    view = policy.evaluate(rows, frozenset(probe.name for probe in probes), probes=probes)
    grads = column_grads(method, rows, view.map(as_leaf), MetricSums())
    torch.autograd.backward([view[name] for name in grads], list(grads.values()))
    return {name: weight.grad.clone() for name, weight in policy.model.named_parameters()}


@pytest.mark.checks("identity", "otr")
def test_with_the_likelihood_of_demonstrations_it_is_sft():
    batch = batch_for(otr, 1)
    assert_same(gradient(otr.derive(surrogate=sft.surrogate), batch), gradient(sft, batch), exact=True)


@pytest.mark.checks("identity", "otr")
def test_a_policy_that_says_nothing_else_learns_as_sft_does():
    """At a temperature near zero it samples its likeliest token; if that is the demonstrated one, all K samples are hits."""
    policy = policy_of("llama").to(dtype=torch.float64)
    rows = _rows(policy)
    greedy = []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(4):
            ids.append(int(policy.model(torch.tensor([ids])).logits[0, -1].argmax()))
        greedy.append(ids[len(prompt) :])
    rows = token_rows(policy, PROMPTS, greedy)
    rows = rows.replace(key=decision_keys(torch.arange(3), rows.sampled.shape[1]))
    cold = otr.derive(surrogate=OneTokenRollout(samples=8, temperature=1e-6))
    mine, theirs = _step(cold, policy, rows), _step(sft, policy, rows)
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-12)


@pytest.mark.checks("oracle", "otr", by="the gradient of the demonstrations' probability")
def test_its_mean_gradient_is_that_of_the_demonstrations_probability():
    policy = policy_of("llama").to(dtype=torch.float64)
    wrong, on_policy = -0.3, otr.derive(surrogate=OneTokenRollout(samples=64, wrong=-0.3, temperature=1.0))
    rows = _rows(policy)
    policy.model.zero_grad()
    logp = policy.evaluate(rows).logp
    (-(1 - wrong) * (logp.exp() * rows.sampled).sum() / rows.sampled.sum()).backward()
    exact = torch.cat([weight.grad.flatten() for weight in policy.model.parameters()])
    steps = [_step(on_policy, policy, _rows(policy, seed)) for seed in range(60)]
    drawn = torch.stack([torch.cat([grad.flatten() for grad in step.values()]) for step in steps])
    along = drawn @ exact / exact.norm()
    assert abs(float(along.mean() - exact.norm())) < 4 * float(along.std()) / 60**0.5
    closeness = torch.nn.functional.cosine_similarity(drawn.mean(0), exact, dim=0)
    assert float(closeness) > 0.97, "and they point the same way"


def test_a_demonstrated_token_that_is_never_sampled_only_punishes():
    policy = policy_of("llama").to(dtype=torch.float64)
    rows = _rows(policy)
    never = otr.derive(surrogate=OneTokenRollout(samples=4, wrong=0.0, temperature=1e-6))
    greedy_hit = policy.evaluate(rows, frozenset({"one_token"}), probes=never.surrogate.probes())["one_token"] != 0
    assert not greedy_hit.any(), "these answers are nowhere the likeliest"
    assert not any(grad.any() for grad in _step(never, policy, rows).values())


def test_columns_that_are_missing_or_infinite():
    batch = batch_for(otr, 0)
    with pytest.raises(MethodError, match="one_token"):
        gradient(otr, replace_view(batch, "current", one_token=None))
    column = batch.current["one_token"].detach().clone()
    column[0, 0] = -torch.inf
    found = gradient(otr, replace_view(batch, "current", one_token=column))
    assert found.finite() and found.more["one_token"].any() and not found.logp.any()


def test_nonsense_is_refused():
    for knobs, words in (({"samples": 0}, "samples"), ({"wrong": 1.0}, "wrong"), ({"temperature": 0.0}, "temperature")):
        with pytest.raises(MethodError, match=words):
            otr.derive(surrogate=OneTokenRollout(**knobs))
    with pytest.raises(up.UserError, match="otr"):
        up.train("otr", "gym:CartPole-v1", steps=1)
