"""BC: d3rlpy's updates, and the likelihood of a Gaussian of spread one is the squared distance."""

from __future__ import annotations

import pytest
import torch
from beside_d3rlpy import ENCODER, SEED, their_batch, their_layers
from d3rlpy.algos import BCConfig
from d3rlpy.optimizers import AdamFactory
from stored_rows import EPS, SMALL, SPACE, Small, drawn_rows

from upslope.methods import find

bc = find("bc").with_knobs({"policy.hidden": SMALL["policy.hidden"]})


@pytest.mark.checks("oracle", "bc", by="d3rlpy's BC: all weights after several updates")
def test_updates_are_those_of_d3rlpy():
    torch.manual_seed(SEED)
    algo = BCConfig(learning_rate=1e-3, encoder_factory=ENCODER, optim_factory=AdamFactory(eps=EPS)).create(device="cpu:0")
    algo.create_impl(SPACE.observation, SPACE.actions)
    small = Small(bc)
    small.take(dict(their_layers("policy", [algo.impl.policy])))
    first = small.weights()
    for update in range(1, 5):
        rows = drawn_rows(update)
        small.update(rows, update)
        algo.impl.update(their_batch(rows), update)
    for name, weight in their_layers("policy", [algo.impl.policy]):
        torch.testing.assert_close(small.weights()[name], weight, rtol=0, atol=1e-5)
        assert (weight - first[name]).abs().max() > 5e-4


@pytest.mark.checks("identity", "bc")
def test_the_likelihood_of_a_certain_policy_is_the_squared_distance():
    """-log N(a; mu, 1) is half the squared distance and a constant: D/2 times the mean over dimensions."""
    squared, likely = Small(bc), Small(bc.with_knobs({"surrogate.likelihood": True}))
    rows = drawn_rows(1)
    (loss, gradient), (other, others) = squared.policy_gradient(rows), likely.policy_gradient(rows)
    torch.testing.assert_close(others, gradient * SPACE.actions / 2)
    torch.testing.assert_close(other, loss * SPACE.actions / 2 + SPACE.actions * 0.5 * torch.log(torch.tensor(2 * torch.pi)))
