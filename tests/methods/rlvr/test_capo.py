"""CAPO: the second-order model of a token's step, and the tokens it drops."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view
from torch import Tensor

import upslope as up
from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.base import ProbeInputs
from upslope.objective.functional.curvature import ObjectiveChange, PolicyShift, planned_step
from upslope.objective.weight.curvature import TrustToken

capo = find("capo")
grpo = find("grpo").derive(regularize=None)
OFF = TrustToken(rise=math.inf, fall=math.inf, shift=math.inf)


def _decisions(seed: int = 0, count: int = 12, vocabulary: int = 7, width: int = 5) -> tuple[ProbeInputs, Tensor]:
    """Random decisions and the head that made their logits."""
    random = torch.Generator().manual_seed(seed)
    head = torch.randn(vocabulary, width, generator=random, dtype=torch.float64)
    hidden = torch.randn(count, width, generator=random, dtype=torch.float64)
    action = torch.randint(0, vocabulary, (count,), generator=random)
    advantage = torch.randn(count, generator=random, dtype=torch.float64)
    return ProbeInputs(hidden @ head.T, hidden, action, advantage), head


def _by_the_book(seen: ProbeInputs, lr: float) -> tuple[Tensor, Tensor]:
    """``v.u`` and ``u'Fu`` with every vector and matrix written out."""
    chances = seen.logits.softmax(1)
    toward = torch.nn.functional.one_hot(seen.action, chances.shape[1]) - chances
    step = lr * seen.advantage.view(-1, 1, 1) * toward.unsqueeze(2) * seen.hidden.unsqueeze(1)
    moved = (step @ seen.hidden.unsqueeze(2)).squeeze(2)
    fisher = torch.diag_embed(chances) - chances.unsqueeze(2) * chances.unsqueeze(1)
    return (toward * moved).sum(1), (moved.unsqueeze(1) @ fisher @ moved.unsqueeze(2)).flatten()


@pytest.mark.checks("oracle", "capo", by="the same quantities with all matrices written out")
@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_is_the_step(seed: int):
    seen, _ = _decisions(seed)
    log, spread = _by_the_book(seen, 0.1)
    step = planned_step(seen, 0.1)
    torch.testing.assert_close(step.log, log)
    torch.testing.assert_close(step.spread, spread)
    expected = seen.advantage * (log + 0.5 * (log.square() - spread))
    torch.testing.assert_close(ObjectiveChange(0.1)(seen), expected)
    torch.testing.assert_close(PolicyShift(0.1)(seen), log.square() / 2)
    torch.testing.assert_close(PolicyShift(0.1, "exact")(seen), spread / 2)


@pytest.mark.checks("oracle", "capo", by="finite differences of A pi_new / pi_old on a real head")
def test_the_predicted_change_is_the_real_one_to_second_order():
    seen, head = _decisions(3)
    rows = torch.arange(len(seen.action))
    old = seen.logits.log_softmax(1)[rows, seen.action]

    def error(lr: float) -> float:
        new = []
        for row in range(len(rows)):  # each decision's own step of the head
            toward = torch.nn.functional.one_hot(seen.action[row], head.shape[0]) - seen.logits[row].softmax(0)
            moved = head + lr * seen.advantage[row] * torch.outer(toward, seen.hidden[row])
            new.append((moved @ seen.hidden[row]).log_softmax(0)[seen.action[row]])
        real = seen.advantage * (torch.stack(new) - old).expm1()
        return float(((ObjectiveChange(lr)(seen) - real) / real).abs().max())

    assert error(1e-4) < 1e-5
    assert error(1e-3) / error(1e-4) == pytest.approx(100, rel=0.05), "the first term left out is of third order"


@pytest.mark.checks("identity", "capo")
def test_the_exact_fisher_is_the_empirical_one_in_expectation():
    seen, _ = _decisions(4)
    chances = seen.logits.softmax(1)
    toward = torch.nn.functional.one_hot(seen.action, 7) - chances
    moved = 0.1 * (seen.advantage * seen.hidden.square().sum(1)).unsqueeze(1) * toward  # of the action that was taken
    other = torch.eye(7, dtype=torch.float64) - chances.unsqueeze(1)  # v of every action
    expected = (chances * (other @ moved.unsqueeze(2)).squeeze(2).square()).sum(1) / 2
    torch.testing.assert_close(PolicyShift(0.1, "exact")(seen), expected)


@pytest.mark.checks("identity", "capo")
def test_without_bounds_it_is_grpo(ragged_batch):
    off = capo.derive(weight=OFF)
    assert not off.needs() - grpo.needs() and not OFF.probes(), "and costs nothing"
    assert_same(gradient(off, ragged_batch), gradient(grpo, ragged_batch), exact=True)


@pytest.mark.checks("oracle", "capo", by="hand-worked numbers")
def test_what_is_dropped_is_in_no_mean():
    batch = random_batch(0, groups=1, samples=2, positions=3, ragged=False)
    change = torch.tensor([[0.001, 0.02, -0.02], [0.005, -0.005, 0.0]], dtype=torch.float64)
    shift = torch.tensor([[1e-5, 1e-5, 1e-5], [2e-4, 1e-5, 0.0]], dtype=torch.float64)
    batch = replace_view(batch, "current", objective_change=change, policy_shift=shift)
    assert TrustToken()(batch).tolist() == [[1, 0, 0], [0, 1, 1]]
    assert TrustToken(fall=0.0)(batch).tolist() == [[1, 0, 0], [0, 0, 1]], "only what is predicted to rise, or not to move"
    assert TrustToken(shift=math.inf, fall=math.inf)(batch).tolist() == [[1, 0, 1], [1, 1, 1]]
    assert TrustToken(quantile=0.8)(batch).tolist() == [[1, 1, 1], [0, 1, 1]]
    found = gradient(capo, batch).logp
    plain = gradient(grpo, batch.replace(sampled=TrustToken()(batch))).logp
    assert plain.abs().max() > 0
    torch.testing.assert_close(found, plain)


def _weights(method, tmp_path, name: str) -> tuple[dict, list]:
    reward = tmp_path / "letters.py"
    reward.write_text("def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n")
    sizes = {"steps": 2, "tasks_per_step": 4, "updates_per_step": 2, "warm_start": 0.0, "eval_problems": 4, "watch_kl": False}
    run = up.train(
        method, "reverse:length=2", model="tiny:layers=1,width=32", reward=f"{reward}:score", **sizes, out=tmp_path / name
    )
    return run.policy.weights(), run.metrics


@pytest.mark.checks("learns", "capo")
def test_a_language_model_is_probed(tmp_path):
    plain, told = _weights(grpo.derive(name="plain"), tmp_path, "plain")
    off, _ = _weights(capo.derive(weight=OFF), tmp_path, "off")
    assert all(torch.equal(plain[name], off[name]) for name in plain)
    _, fewer = _weights(capo.derive(weight=TrustToken(quantile=0.8)), tmp_path, "some")
    share = fewer[0]["learning"] / told[0]["learning"]
    assert 0.55 < share < 1, "the same first rollout, of which up to two fifths are dropped"


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="shift is 0"):
        TrustToken(shift=0.0)
    with pytest.raises(MethodError, match="quantile=2"):
        TrustToken(quantile=2.0)
    with pytest.raises(MethodError, match="lr is -1"):
        PolicyShift(lr=-1.0)
    with pytest.raises(MethodError, match="policy_shift"):
        gradient(capo, replace_view(random_batch(seed=0), "current", policy_shift=None))
