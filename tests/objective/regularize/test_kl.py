"""Estimates of a divergence: by hand, and against the exact one on a policy that can be enumerated."""

from __future__ import annotations

import math

import pytest
import torch
from exact_policy import ExactPolicy

from upslope.objective.regularize import kl_estimate


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)), ("k3+", math.exp(-0.5) - 0.5, 0.5)],
)
def test_kl_estimates_by_hand(estimator: str, value: float, slope: float):
    """log pi = -1, log pi_ref = -1.5: x = -0.5, k3 = e^x - x - 1. Slopes are in log pi; k3+ has k3's value and k2's slope."""
    logp = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    estimate = kl_estimate(logp, torch.tensor(-1.5).double(), estimator)
    assert estimate.item() == pytest.approx(value) and torch.autograd.grad(estimate, logp)[0].item() == pytest.approx(slope)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3+"])
def test_kl_estimates_against_the_exact_divergence(estimator: str):
    policy, other = ExactPolicy.random(seed=1, ragged=False), ExactPolicy.random(seed=2, ragged=False)
    tokens, sampled = policy.sequences()
    chance = policy.sequence_logp().exp().detach()
    estimate = (kl_estimate(policy.logp(tokens), other.logp(tokens).detach(), estimator) * sampled).sum(1) @ chance
    if estimator != "k2":
        torch.testing.assert_close(estimate, policy.divergence(other))
    # The divergence at each prefix, prefixes weighted as they were sampled: what a loss per decision can differentiate.
    divergence = (policy.divergence_at(other, tokens) * sampled).sum(1) @ chance
    torch.testing.assert_close(divergence, policy.divergence(other))
    ours, truth = (torch.autograd.grad(term, policy.logits)[0] for term in (estimate, divergence))
    right = torch.allclose(ours, truth, atol=1e-9)
    assert right == (estimator in ("k2", "k3+"))
