"""PACS with standardised scores: the spread held constant, or differentiated as in the released code."""

from __future__ import annotations

import pytest
import torch
from batches import at_proximal, gradient, random_batch, replace_view
from torch import Tensor

from upslope.methods import find
from upslope.objective.surrogate.supervised import LabelFromRatio
from upslope.types import Batch

pacs = find("pacs")


def answers(scores: list[float], labels: list[float]) -> Batch:
    """One group of answers of one token with these log-ratios."""
    batch = random_batch(seed=0, groups=1, samples=len(scores), positions=1, ragged=False)
    moved = torch.tensor(scores, dtype=torch.float64).unsqueeze(1)
    batch = replace_view(batch, "current", logp=batch.proximal.logp + moved)
    return batch.replace(reward=torch.tensor(labels, dtype=torch.float64))


def grad_of(batch: Batch, spread_gradient: bool, eps: float = 0.0) -> Tensor:
    part = LabelFromRatio(centre="standard", balance=False, eps=eps, spread_gradient=spread_gradient)
    return gradient(pacs.derive(surrogate=part), batch).logp.flatten()


def test_two_scores_have_nothing_to_learn_once_their_spread_is_differentiated():
    # Two standardised scores are ±1/sqrt 2 whatever they are; a spread held constant lets them move.
    batch = answers([0.3, -0.1], [1.0, 0.0])
    assert grad_of(batch, spread_gradient=True).tolist() == pytest.approx([0.0, 0.0], abs=1e-12)
    assert grad_of(batch, spread_gradient=False)[0] < -0.1


def test_three_scores_by_hand():
    """Scores 0, 0, 3: mean 1, spread sqrt 3, standardised z = -1, -1, 2 over sqrt 3.

    With g = (sigmoid(z) - R) / 3, the gradient is (g - mean g - z (g · z) / 2) / sqrt 3; the last term is the spread's.
    """
    z = torch.tensor([-1.0, -1, 2], dtype=torch.float64) / 3**0.5
    label = torch.tensor([1.0, 0, 1], dtype=torch.float64)
    g = (z.sigmoid() - label) / 3
    batch = answers([0.0, 0.0, 3.0], label.tolist())
    torch.testing.assert_close(grad_of(batch, False), (g - g.mean()) / 3**0.5)
    torch.testing.assert_close(grad_of(batch, True), (g - g.mean() - z * (g * z).sum() / 2) / 3**0.5)


def test_the_first_update_where_all_scores_are_zero_is_finite_and_the_same():
    batch = at_proximal(random_batch(seed=1, groups=2, samples=4))
    batch = batch.replace(reward=(batch.reward > 0.5).double())
    with_spread = grad_of(batch, True, eps=1e-6)
    assert with_spread.isfinite().all() and with_spread.any()
    torch.testing.assert_close(with_spread, grad_of(batch, False, eps=1e-6))
