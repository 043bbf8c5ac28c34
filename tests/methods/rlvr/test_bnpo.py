"""BNPO's density: two fixed ones are REINFORCE and GRPO, the fitted one lowers the variance."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage import GroupBaseline
from upslope.objective.advantage.beta import BetaNormalised, log_density
from upslope.runtime.seeding import generator
from upslope.types import Batch

bnpo, grpo, reinforce = (find(name) for name in ("bnpo", "grpo", "reinforce"))


def rewarded(rewards: list[list[float]]) -> Batch:
    """A batch of groups with these rewards."""
    batch = random_batch(seed=0, groups=len(rewards), samples=len(rewards[0]))
    reward = torch.tensor(rewards, dtype=torch.float64).flatten()
    return batch.replace(reward=reward, components={"task": reward})


def binary(seed: int) -> Batch:
    batch = random_batch(seed, groups=4, samples=6)
    return rewarded((batch.reward > 0.5).double().view(4, 6).tolist())


def per_row(part, batch: Batch) -> Tensor:
    return part(batch).sum(1) / batch.lengths()


@pytest.mark.checks("identity", "bnpo")
def test_a_flat_density_is_reinforce_with_a_baseline():
    batch = binary(seed=1)
    flat = BetaNormalised(alpha=1.0, beta=1.0)
    assert torch.equal(flat(batch), reinforce.advantage(batch))
    ours = bnpo.derive(advantage=flat, ratio=reinforce.ratio, surrogate=reinforce.surrogate)
    assert_same(gradient(ours, batch), gradient(reinforce, batch), exact=True)


@pytest.mark.checks("identity", "bnpo")
def test_three_halves_is_grpo_times_pi_over_eight():
    batch = binary(seed=2)
    theirs = GroupBaseline(ddof=0, eps=0.0)(batch) * math.pi / 8
    torch.testing.assert_close(BetaNormalised(alpha=1.5, beta=1.5)(batch), theirs, rtol=1e-12, atol=1e-12)
    assert theirs.abs().max() > 0.1
    plain = grpo.derive(regularize=None, advantage=GroupBaseline(ddof=0, eps=0.0))
    ours = plain.derive(advantage=BetaNormalised(alpha=1.5, beta=1.5))
    near = random_batch(seed=2, groups=4, samples=6, drift=0.02).replace(reward=batch.reward)
    torch.testing.assert_close(gradient(ours, near).logp, gradient(plain, near).logp * math.pi / 8)


@pytest.mark.checks("oracle", "bnpo", by="scipy and hand-worked numbers")
def test_the_fit_and_the_density():
    from scipy.stats import beta

    # Success rates 1/4, 1/2, 3/4: m = 1/2, v = 1/16 (unbiased), so c = 0.25 * 16 - 1 = 3, a = b = 1.5, alpha = beta = 1.5.
    batch = rewarded([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])
    stats = batch.group_stats(batch.reward)
    alpha, beta_ = BetaNormalised().parameters(batch, stats.mean, stats.size)
    assert (alpha.item(), beta_.item()) == pytest.approx((1.5, 1.5))
    expected = [(r - p) / beta.pdf(p, 1.5, 1.5) for r, p in zip(batch.reward.tolist(), stats.mean.tolist(), strict=True)]
    assert per_row(BetaNormalised(), batch).tolist() == pytest.approx(expected)
    # The first answer of the second group: 0.5 / f(0.5) with f = sqrt(0.25) * 8 / pi.
    assert per_row(BetaNormalised(), batch)[4].item() == pytest.approx(math.pi / 8)
    # Uneven: rates 0, 1/4, 1/2 have m = 1/4, v = 1/16, c = 2, a = 1/2, b = 3/2.
    batch = rewarded([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]])
    stats = batch.group_stats(batch.reward)
    alpha, beta_ = BetaNormalised().parameters(batch, stats.mean, stats.size)
    assert (alpha.item(), beta_.item()) == pytest.approx((1 + 1 / 6, 1.5))
    assert per_row(BetaNormalised(), batch)[4].item() == pytest.approx(0.75 / beta.pdf(0.25, 1 + 1 / 6, 1.5))
    assert not per_row(BetaNormalised(), batch)[:4].any(), "a group that is all wrong carries no signal"


@pytest.mark.checks("oracle", "bnpo", by="closed forms")
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (2.0, 5.0), (0.7, 3.0), (6.0, 6.0)])
def test_the_fitted_density_has_the_least_variance(a: float, b: float):
    """With rates from Beta(a, b), the variance of A is E[p (1-p) / f^2] = B(alpha, beta)^2 B(a+3-2 alpha, b+3-2 beta) / B(a, b)."""
    random = generator(3, "rates", int(10 * a), int(10 * b))
    gamma = torch._standard_gamma(torch.tensor([[a], [b]]).expand(2, 200_000).double().clone(), generator=random)
    rate = (gamma[0] / gamma.sum(0)).clamp(1e-12, 1 - 1e-12)

    def log_beta(x: float, y: float) -> float:
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    def exact(alpha: float, beta: float) -> float:
        if min(a + 3 - 2 * alpha, b + 3 - 2 * beta) <= 0:
            return math.inf
        return math.exp(2 * log_beta(alpha, beta) + log_beta(a + 3 - 2 * alpha, b + 3 - 2 * beta) - log_beta(a, b))

    def simulated(alpha: float, beta: float) -> float:
        density = log_density(rate, torch.tensor(alpha).double(), torch.tensor(beta).double()).exp()
        return float((rate * (1 - rate) / density**2).mean())

    best = (1 + a / 3, 1 + b / 3)
    assert simulated(*best) == pytest.approx(exact(*best), rel=0.02)
    for other in ((1.0, 1.0), (1.5, 1.5), (best[0] * 1.05, best[1]), (best[0], best[1] * 0.95)):
        assert exact(*best) < exact(*other)
    assert simulated(*best) < min(simulated(1.0, 1.0), simulated(1.5, 1.5)), "below REINFORCE and GRPO"


def test_equal_rates_and_single_groups_stay_finite():
    equal = rewarded([[1, 0, 0, 0]] * 3)
    stats = equal.group_stats(equal.reward)
    alpha, beta = BetaNormalised().parameters(equal, stats.mean, stats.size)
    # The sharpest fit keeps the ratio of the rates, 1 to 3: a point mass near them, no weight of a million.
    assert alpha.item() - 1 == pytest.approx((beta.item() - 1) / 3) and beta.item() <= 1000
    assert 0 < per_row(BetaNormalised(), equal).abs().max() < 1
    one = rewarded([[1, 0, 0, 0]])
    assert torch.equal(BetaNormalised()(one), BetaNormalised(1.0, 1.0)(one))


def test_components_are_normalised_apart_and_added():
    batch = rewarded([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])
    form = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.float64).flatten()
    both = batch.replace(components={"task": batch.reward, "answer": batch.reward, "form": form})
    ours = BetaNormalised(by_component=True)(both)
    torch.testing.assert_close(ours, BetaNormalised()(batch) + BetaNormalised()(batch.replace(reward=form)))
    assert torch.equal(BetaNormalised(by_component=True)(batch), BetaNormalised()(batch))


def test_rewards_of_another_range_are_mapped():
    batch = rewarded([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])
    signed = batch.replace(reward=2 * batch.reward - 1)
    torch.testing.assert_close(BetaNormalised(lowest=-1.0)(signed), BetaNormalised()(batch))


def test_one_parameter_may_be_fixed_and_knobs_are_set_one_by_one():
    batch = rewarded([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])
    stats = batch.group_stats(batch.reward)
    alpha, beta = BetaNormalised(alpha=2.0).parameters(batch, stats.mean, stats.size)
    assert (alpha.item(), beta.item()) == pytest.approx((2.0, 1.5))
    assert bnpo.with_knobs({"advantage.beta": 1.0, "advantage.alpha": 1.0}).advantage == BetaNormalised(1.0, 1.0)


@pytest.mark.parametrize("fields", [{"alpha": 0.9}, {"alpha": 0.5, "beta": 0.5}, {"highest": 0.0}, {"sharpest": 0.5}])
def test_nonsense_is_refused(fields: dict):
    with pytest.raises(MethodError, match="BetaNormalised"):
        BetaNormalised(**fields)
