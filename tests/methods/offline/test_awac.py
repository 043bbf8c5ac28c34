"""AWAC: d3rlpy's updates, and what its weights are."""

from __future__ import annotations

import pytest
import torch
from beside_d3rlpy import TheirNoise, compare, free_spread, made
from d3rlpy.algos import AWACConfig
from d3rlpy.models.torch.policies import build_gaussian_distribution
from d3rlpy.optimizers import AdamFactory
from stored_rows import EPS, SMALL, Small, assert_same_weights, drawn_rows

from upslope.methods import find

awac = find("awac").with_knobs(SMALL)
bc = find("bc")


@pytest.mark.checks("oracle", "awac", by="d3rlpy's AWAC: all weights after several updates, with its target as the paper has it")
def test_updates_are_those_of_d3rlpy(monkeypatch: pytest.MonkeyPatch):
    """Theirs departs from the paper in its target: that draws from tanh of the policy's Gaussian and pays for entropy.

    Both are put right here. Its weights are a softmax over the batch, as in the code the authors released: our
    ``surrogate.normalised``. Its loss is a sum over rows where ours is a mean, which Adam does not see
    if what it adds to its divisor grows alike.
    """
    free_spread(monkeypatch)
    monkeypatch.setattr("d3rlpy.algos.qlearning.torch.sac_impl.build_squashed_gaussian_distribution", build_gaussian_distribution)
    algo = made(AWACConfig, actor_optim_factory=AdamFactory(eps=drawn_rows(0).rows * EPS))
    with torch.no_grad():
        next(algo.impl._modules.log_temp.parameters()).fill_(-torch.inf)
    small = Small(awac.with_knobs({"surrogate.normalised": True, "surrogate.cap": float("inf"), "models.q.weight": 1.0}))
    compare(small, algo, before=TheirNoise(monkeypatch).follows(small, "next/policy/1", "now/policy/1"))


@pytest.mark.checks("identity", "awac")
@pytest.mark.parametrize("normalised", [False, True])
def test_at_an_infinite_temperature_it_is_cloning_by_likelihood(normalised: bool):
    plain = Small(awac.with_knobs({"surrogate.beta": 0.0, "surrogate.normalised": normalised}))
    cloning = Small(bc.derive(policy=awac.policy).with_knobs({"surrogate.likelihood": True}))
    cloning.take(plain.policy.weights())
    for update in range(1, 4):
        rows = drawn_rows(update)
        plain.update(rows, update)
        cloning.update(rows, update)
    own = {name: plain.weights()[name] for name in cloning.weights()}
    assert_same_weights(own, cloning.weights(), atol=1e-6 if normalised else None)  # the mean of ones is rounded


def test_weights_by_hand():
    """Advantages 0 and log 3 at beta 1: weights 1 and 3, or, divided by their mean, a half and one and a half."""
    rows = drawn_rows(0, rows=2).replace(advantage=torch.tensor([[1.0], [3.0]]).log())
    part = awac.surrogate
    small = Small(awac)
    batch = rows.replace(nets=small.nets(rows, scope="policy"))
    torch.testing.assert_close(part(batch, ())[1]["imitation_weight"].flatten(), torch.tensor([1.0, 3.0]))
    even = awac.with_knobs({"surrogate.normalised": True}).surrogate
    batch = batch.replace(prepared={even: even.prepare(batch)})
    torch.testing.assert_close(even(batch, ())[1]["imitation_weight"].flatten(), torch.tensor([0.5, 1.5]))
