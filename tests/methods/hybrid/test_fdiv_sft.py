"""Supervised fine-tuning by divergences: the table of functions, and the gradient that fades."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.aggregate import SequenceMeanTokenMean
from upslope.objective.estimator import annotate, begin_update, decision_losses, method_loss
from upslope.objective.surrogate.implicit_reward import DOMAIN, Divergence, ImplicitReward, phi
from upslope.types import View

fdiv, sft = find("fdiv-sft"), find("sft")
DIVERGENCES = get_args(Divergence)
BY_HAND = {
    "total-variation": lambda r: r,
    "pearson": lambda r: r - r**2 / 4,
    "hellinger": lambda r: r / (1 + r),
    "jensen-shannon": lambda r: math.log(2 - math.exp(-r)),
    "reverse-kl": lambda r: -math.exp(-(1 + r)),
    "forward-kl": lambda r: 1 + math.log(r),
}


def _with(**knobs):
    return fdiv.derive(surrogate=ImplicitReward(**knobs))


@pytest.mark.checks("identity", "fdiv-sft")
@pytest.mark.parametrize("unit", ["token", "mean", "sum"])
def test_total_variation_is_sft(unit: str, ragged_batch):
    off = _with(divergence="total-variation", unit=unit)
    assert off.needs() == sft.needs(), "and needs no reference"
    assert_same(gradient(off, ragged_batch), gradient(sft, ragged_batch), exact=True)


@pytest.mark.checks("identity", "fdiv-sft")
@pytest.mark.parametrize("divergence", ["pearson", "hellinger", "jensen-shannon"])
def test_at_the_start_every_one_that_is_defined_there_is_sft(divergence: str):
    """phi'(0) = 1. Not so of the two Kullback-Leibler divergences: 1/e, and outside of the domain."""
    batch = random_batch(seed=3)
    batch = batch.replace(reference={"start": View(batch.current.logp.detach())})
    assert torch.equal(gradient(_with(divergence=divergence), batch).logp, gradient(sft, batch).logp)
    torch.testing.assert_close(gradient(_with(divergence="reverse-kl"), batch).logp, gradient(sft, batch).logp / math.e)
    torch.testing.assert_close(gradient(_with(divergence="forward-kl", edge=0.25), batch).logp, gradient(sft, batch).logp * 4)


@pytest.mark.checks("oracle", "fdiv-sft", by="finite differences")
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_the_table_of_functions_and_their_slopes(divergence: Divergence):
    first = DOMAIN.get(divergence, -3.0) + 0.05
    rewards = torch.linspace(first, 3.0, 40, dtype=torch.float64)
    value, slope = phi(rewards, divergence)
    by_hand, step = BY_HAND[divergence], 1e-6
    for r, v, s in zip(rewards.tolist(), value.tolist(), slope.tolist(), strict=True):
        assert v == pytest.approx(by_hand(r), rel=1e-12, abs=1e-12)
        assert s == pytest.approx((by_hand(r + step) - by_hand(r - step)) / (2 * step), rel=1e-6, abs=1e-8)


def _literal(batch, divergence: Divergence, unit: str, beta: float) -> Tensor:
    """Minus the mean over tokens of phi / beta, written down as the formula stands; autograd does the rest."""
    log = (batch.current.logp - batch.reference["start"].logp) * batch.sampled
    if unit == "mean":
        log = (log.sum(1) / batch.lengths().clamp_min(1)).unsqueeze(1)
    return -(phi(beta * log, divergence).value / beta * batch.sampled).sum() / batch.sampled.sum()


@pytest.mark.checks("oracle", "fdiv-sft", by="autograd through the formula as written")
@pytest.mark.parametrize("unit", ["token", "mean"])
@pytest.mark.parametrize("divergence", [name for name in DIVERGENCES if name != "forward-kl"])
def test_gradient_is_that_of_the_formula(divergence: Divergence, unit: str):
    batch = random_batch(seed=5)
    start = (
        batch.current.logp.detach() + 0.1 * torch.randn(batch.sampled.shape, generator=torch.Generator().manual_seed(0)).double()
    )
    batch = batch.replace(reference={"start": View(start)})
    leaf = batch.current.logp.detach().clone().requires_grad_()
    expected = _literal(replace_view(batch, "current", logp=leaf), divergence, unit, 1.5)
    method = _with(divergence=divergence, unit=unit, beta=1.5)
    found = gradient(method, batch)
    torch.testing.assert_close(found.logp, torch.autograd.grad(expected, leaf)[0], rtol=1e-10, atol=1e-14)
    if divergence != "total-variation":  # which says -log pi, as sft does: another value by a constant
        torch.testing.assert_close(found.loss, expected.detach(), rtol=1e-10, atol=1e-14)


def test_of_a_whole_answer_the_sum_decides_how_much_is_learned():
    batch = random_batch(seed=6, groups=1, samples=2, positions=3, ragged=False)
    log = torch.tensor([[0.5, 0.25, 0.25], [-0.1, -0.2, 0.0]], dtype=torch.float64)
    batch = batch.replace(reference={"start": View(batch.current.logp.detach() - log)})
    plain = gradient(sft, batch).logp
    for unit, rewards in (("sum", [1.0, -0.3]), ("mean", [1 / 3, -0.1])):
        factor = torch.tensor([[1 - r / 2] for r in rewards], dtype=torch.float64)
        torch.testing.assert_close(gradient(_with(unit=unit), batch).logp, plain * factor)
    torch.testing.assert_close(gradient(_with(unit="token"), batch).logp, plain * (1 - log / 2))
    far = batch.replace(reference={"start": View(batch.current.logp.detach() - 4 * log)})
    assert float((gradient(_with(unit="sum"), far).logp / plain)[0, 0]) == pytest.approx(-1.0), "pearson turns round at r = 2"


@pytest.mark.parametrize("divergence", sorted(DOMAIN))
def test_below_its_domain_a_function_goes_on_as_a_straight_line(divergence: Divergence):
    part = ImplicitReward(divergence=divergence, edge=0.2)
    border = DOMAIN[divergence] + 0.2
    rewards = torch.tensor([border - 30, border - 1, border - 1e-9, border, border + 1e-9, border + 1], dtype=torch.float64)
    value, slope = part.extended(rewards)
    assert slope[0] == slope[1] == slope[2] == slope[3] and slope[5] < slope[3]
    torch.testing.assert_close(value[3] - value[1], slope[3] * 1.0)
    torch.testing.assert_close(value[4], value[2], rtol=0, atol=1e-6)
    batch = random_batch(seed=7)
    logp = batch.current.logp.detach()
    low = batch.replace(reference={"start": View(logp + 50)}, current=View(logp.requires_grad_()))
    assert gradient(_with(divergence=divergence), low).finite()


def test_notes_say_what_lies_outside():
    batch = random_batch(seed=8)
    at_start = batch.replace(reference={"start": View(batch.current.logp.detach())})
    for divergence, share in (("forward-kl", 1.0), ("hellinger", 0.0)):
        method = _with(divergence=divergence)
        _, notes = decision_losses(method, begin_update(method, annotate(method, at_start)))
        assert notes["outside"].dtype == torch.bool and float(notes["outside"].double().mean()) == share


def test_other_means_and_refusals(ragged_batch):
    means = [fdiv.derive(aggregate=aggregate) for aggregate in (fdiv.aggregate, SequenceMeanTokenMean())]
    assert float(method_loss(means[0], ragged_batch).detach()) != float(method_loss(means[1], ragged_batch).detach())
    with pytest.raises(MethodError, match="beta"):
        _with(beta=0.0)
    with pytest.raises(MethodError, match="edge"):
        _with(edge=0.0)
    with pytest.raises(MethodError, match="divergence"):
        _with(divergence="chi")
    with pytest.raises(MethodError, match="'start'"):
        gradient(fdiv, ragged_batch.replace(reference={}))
