"""Clip-Cov and KL-Cov: which decisions they hold, and why those cost entropy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from batches import assert_same, gradient, random_batch
from exact_policy import ExactPolicy
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.aggregate import TokenMean
from upslope.objective.estimator import annotate, begin_update, early_columns
from upslope.objective.functional.covariance import covariance
from upslope.objective.regularize.covariance import CovarianceKL
from upslope.objective.surrogate import PessimisticClip, Unclipped
from upslope.objective.surrogate.covariance import CovarianceClip
from upslope.types import Batch, Method

clip_cov, kl_cov, grpo = (find(name) for name in ("clip-cov", "kl-cov", "grpo"))
bare = grpo.derive(aggregate=TokenMean(), regularize=None)


def clipping(**knobs: float | str) -> Method:
    return clip_cov.derive(surrogate=CovarianceClip(**knobs))


def holding(**knobs: float | str) -> Method:
    return kl_cov.derive(regularize=CovarianceKL(**knobs))


def chosen(method: Method, batch: Batch) -> Tensor:
    """Decisions that the method picks out of this update."""
    (found,) = begin_update(method, annotate(method, batch)).prepared.values()
    return found


@pytest.mark.checks("identity", "clip-cov")
def test_without_a_fraction_clip_cov_is_the_plain_clip(ragged_batch: Batch):
    off = clipping(fraction=0.0, low=0.2, high=0.28)
    assert_same(gradient(off, ragged_batch), gradient(bare.derive(surrogate=PessimisticClip(0.2, 0.28)), ragged_batch), exact=True)
    assert not early_columns(off) and early_columns(clip_cov)


@pytest.mark.checks("identity", "kl-cov")
@pytest.mark.parametrize("off", [{"fraction": 0.0}, {"weight": 0.0}])
def test_without_its_term_kl_cov_is_plain_importance_weighting(ragged_batch: Batch, off: dict):
    assert_same(gradient(holding(**off), ragged_batch), gradient(bare.derive(surrogate=Unclipped()), ragged_batch), exact=True)


@pytest.mark.checks("oracle", "clip-cov", "kl-cov", by="hand-worked numbers")
def test_covariance_by_hand():
    batch = random_batch(seed=0, groups=1, samples=4, positions=1, ragged=False)
    logp = torch.tensor([[-1.0], [-2.0], [-3.0], [-2.0]], dtype=torch.float64)
    advantage = torch.tensor([[3.0], [-1.0], [-1.0], [-1.0]], dtype=torch.float64)
    batch = batch.replace(
        advantage=advantage, current=batch.current.map(lambda _: logp), proximal=batch.proximal.map(lambda _: logp)
    )
    # Means 0 and -2: (3)(1), (-1)(0), (-1)(-1), (-1)(0).
    for source in ("current", "proximal"):
        assert covariance(batch, source).flatten().tolist() == [3.0, 0.0, 1.0, 0.0]
    assert CovarianceKL(fraction=0.5).prepare(batch).flatten().tolist() == [True, False, True, False]
    assert CovarianceKL(fraction=1.0).prepare(batch).flatten().tolist() == [True, False, True, False], "only positive ones"
    assert CovarianceClip(fraction=1.0, above=1.0, below=5.0).prepare(batch).flatten().tolist() == [True, False, False, False]
    assert CovarianceClip(fraction=1.0, above=0.5, below=3.0).prepare(batch).flatten().tolist() == [False, False, True, False]


def _verl(name: str, batch: Batch, advantage: Tensor, **knobs: float) -> tuple[Tensor, Tensor]:
    """Loss and gradient of verl's implementation."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    config = SimpleNamespace(
        clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, policy_loss=SimpleNamespace(**knobs), global_batch_info={}
    )
    leaf = batch.current.logp
    loss, _ = POLICY_LOSS_REGISTRY[name](batch.proximal.logp, leaf, advantage, batch.sampled, "token-mean", config)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


@pytest.mark.oracle("verl")
@pytest.mark.checks("oracle", "clip-cov", by="verl")
@pytest.mark.parametrize("seed", range(4))
def test_clip_cov_matches_verl_where_every_candidate_is_taken(seed: int):
    batch = random_batch(seed, groups=3, samples=4)
    method = clipping(fraction=1.0, above=0.1, below=1.5, low=0.2, high=0.28)
    knobs = {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 1.5}
    loss, grad = _verl("clip_cov", batch, annotate(method, batch).advantage, **knobs)
    ours = gradient(method, batch)
    torch.testing.assert_close(ours.loss, loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.logp, grad, rtol=1e-9, atol=1e-12)
    assert 3 < chosen(method, batch).sum() < 30, "a test in which nothing or all is chosen would show nothing"


@pytest.mark.oracle("verl")
@pytest.mark.checks("oracle", "kl-cov", by="verl")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fraction", [0.05, 0.2])
def test_kl_cov_matches_verl(seed: int, fraction: float):
    batch = random_batch(seed, groups=3, samples=4)
    method = holding(fraction=fraction, weight=0.7)
    loss, grad = _verl("kl_cov", batch, annotate(method, batch).advantage, kl_cov_ratio=fraction, ppo_kl_coef=0.7)
    ours = gradient(method, batch)
    torch.testing.assert_close(ours.loss, loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.logp, grad, rtol=1e-9, atol=1e-12)
    assert chosen(method, batch).sum() == int(fraction * batch.sampled.sum())


def test_clip_cov_takes_as_many_as_its_fraction_at_random_among_the_candidates():
    batch = random_batch(seed=1, groups=6, samples=8)
    candidates = chosen(clipping(fraction=1.0, above=0.2), batch)
    wanted = int(0.02 * batch.sampled.sum())
    draws = [chosen(clipping(fraction=0.02, above=0.2), batch.replace(draw=draw)) for draw in range(40)]
    assert all(picked.sum() == wanted and not (picked & ~candidates).any() for picked in draws)
    often = torch.stack(draws).double().mean(0)[candidates]
    share = wanted / candidates.sum()
    assert often.max() < share + 5 * (share * (1 - share) / 40) ** 0.5, "every candidate is equally likely"
    assert len({tuple(picked.flatten().tolist()) for picked in draws}) > 30


def test_what_the_clip_holds_already_is_not_chosen():
    batch = random_batch(seed=2, groups=3, samples=4)
    ratio = (batch.current.logp - batch.proximal.logp).exp()
    advantage = annotate(grpo, batch).advantage
    held = ((advantage > 0) & (ratio > 1.28)) | ((advantage < 0) & (ratio < 0.8))
    narrow, wide = (chosen(clipping(fraction=1.0, above=0.05, **bounds), batch) for bounds in ({"low": 0.2, "high": 0.28}, {}))
    assert (wide & held).any() and torch.equal(narrow, wide & ~held)


@pytest.mark.parametrize("method", [clip_cov, kl_cov], ids=lambda method: method.name)
def test_the_proximal_source_costs_no_pass_and_is_the_same_in_the_first_update(method: Method):
    slot = "surrogate" if method is clip_cov else "regularize"
    cheap = method.with_knobs({f"{slot}.source": "proximal", f"{slot}.fraction": 0.1})
    dear = method.with_knobs({f"{slot}.source": "current", f"{slot}.fraction": 0.1})
    assert early_columns(dear) == {"logp"} and not early_columns(cheap)
    batch = random_batch(seed=3, groups=3, samples=4)
    first = batch.replace(current=batch.proximal)
    assert torch.equal(chosen(cheap, first), chosen(dear, first))


@pytest.mark.checks("identity", "clip-cov", "kl-cov")
def test_entropy_falls_by_the_covariance():
    """Softmax bandit: one small policy-gradient step changes the entropy by -lr Cov(log pi, pi A)."""
    policy = ExactPolicy.random(seed=4)
    logits = policy.logits[:1].detach().requires_grad_()
    reward = torch.tensor([1.0, 0.0, 0.3], dtype=torch.float64)

    def entropy(table: Tensor) -> Tensor:
        return -(table.softmax(1) * table.log_softmax(1)).sum()

    chance = logits.softmax(1).detach()
    gain = (logits.softmax(1) * reward).sum()
    (slope,) = torch.autograd.grad(gain, logits)
    push = chance * (reward - gain.detach())
    torch.testing.assert_close(slope, push)
    rate = 1e-5
    change = (entropy(logits + rate * slope) - entropy(logits)).item() / rate
    logp = chance.log()
    predicted = -((chance * logp * push).sum() - (chance * logp).sum() * (chance * push).sum()).item()
    assert abs(predicted) > 1e-3 and change == pytest.approx(predicted, rel=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CovarianceClip(fraction=2.0),
        lambda: CovarianceClip(above=5.0, below=1.0),
        lambda: CovarianceClip(low=-1.0),
        lambda: CovarianceKL(fraction=-0.1),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(MethodError):
        make()
