"""SAFE: the soft minimum, the hinge, and the threshold that a controller moves."""

from __future__ import annotations

import math

import pytest
import torch
from batches import assert_same, at_proximal, gradient, random_batch, replace_view

import upslope as up
from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage.value_baseline import ValueBaseline
from upslope.objective.controller.phases import PhasedThreshold
from upslope.objective.models.pessimistic import PessimisticValue, huber
from upslope.objective.regularize import EntropyBonus
from upslope.objective.regularize.hinge import HingeKL
from upslope.objective.surrogate.silent import NoSurrogate
from upslope.policies.heads import SoftMinimum, soft_minimum
from upslope.types import Batch, View

safe, ppo = find("safe"), find("ppo")
hinge_alone = ppo.derive(surrogate=NoSurrogate(), models=None, advantage=find("grpo").advantage, shape=None, regularize=HingeKL())


# -- the value -------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("identity", "safe")
def test_the_soft_minimum_goes_from_the_minimum_to_the_mean():
    values = torch.tensor([[1.0, 3.0], [-2.0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(soft_minimum(values, 0.01).squeeze(1), values.amin(1), atol=0.01, rtol=0)
    torch.testing.assert_close(soft_minimum(values, 1e6).squeeze(1), values.mean(1), atol=1e-5, rtol=0)
    equal = torch.full((2, 2), 0.7, dtype=torch.float64)
    torch.testing.assert_close(soft_minimum(equal, 0.3), equal[:, :1])
    # -0.3 (log(e^(-1/0.3) + e^(-3/0.3)) - log 2)
    expected = -0.3 * (math.log(math.exp(-1 / 0.3) + math.exp(-10)) - math.log(2))
    assert soft_minimum(values, 0.3)[0, 0].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.checks("oracle", "safe", by="torch's huber_loss")
def test_the_value_is_fitted_with_huber_on_both_terms():
    batch = random_batch(seed=0, ragged=False)
    returns = ValueBaseline().signals(batch, batch.sampled)["returns"]
    ours = PessimisticValue(weight=0.5, clip=0.2, delta=0.5)(batch.replace(signal={"returns": returns}))
    old = batch.proximal.value
    near = old + (batch.current.value - old).clamp(-0.2, 0.2)
    fitted = [torch.nn.functional.huber_loss(v, returns, delta=0.5, reduction="none") for v in (batch.current.value, near)]
    torch.testing.assert_close(ours, 0.25 * (fitted[0] + fitted[1]))
    torch.testing.assert_close(huber(torch.tensor([0.3, -2.0]), 0.5), torch.tensor([0.045, 0.875]))


@pytest.mark.checks("oracle", "safe", by="hand-worked numbers")
def test_the_baseline_is_the_value_of_the_last_decision_or_of_each():
    batch = random_batch(seed=1, groups=1, samples=2, positions=3, ragged=False)
    sampled = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    value = torch.tensor([[0.1, 0.4, 9.0], [0.2, 0.3, 0.6]], dtype=torch.float64)
    batch = replace_view(batch, "proximal", value=value).replace(
        sampled=sampled, reward=torch.tensor([1.0, 0.0], dtype=torch.float64), step_reward=None
    )
    last = torch.tensor([[0.6, 0.6, 0.0], [-0.6, -0.6, -0.6]], dtype=torch.float64)
    each = torch.tensor([[0.9, 0.6, 0.0], [-0.2, -0.3, -0.6]], dtype=torch.float64)
    torch.testing.assert_close(ValueBaseline()(batch), last)
    torch.testing.assert_close(ValueBaseline(at="decision")(batch), each)
    # Whitened over the answers: +-0.6 has mean 0 and spread 0.6 sqrt(2).
    torch.testing.assert_close(safe.shape[0](batch.replace(advantage=last)), last / (0.6 * 2**0.5), atol=1e-7, rtol=0)


# -- the hinge -------------------------------------------------------------------------------------------------------------


def _apart(by: float, entropy: float = 0.4) -> Batch:
    """Three answers of two tokens, all ``by`` more likely than at the start."""
    batch = random_batch(seed=2, groups=1, samples=3, positions=2, ragged=False)
    batch = replace_view(batch, "current", logp=batch.proximal.logp)
    batch = replace_view(batch, "proximal", entropy=torch.full_like(batch.sampled, entropy))
    return batch.replace(reference={"start": View(batch.current.logp.detach() - by)})


@pytest.mark.checks("oracle", "safe", by="hand-worked numbers")
def test_the_hinge_by_hand():
    # K = 0.5, threshold 0.3, entropy 0.4: gate 2 / 0.5 = 4, penalty 0.1 * 4 * 0.04 = 0.016, slope in K 0.16, over six tokens.
    found = gradient(hinge_alone, _apart(0.5))
    assert found.loss.item() == pytest.approx(0.016, rel=1e-9)
    # The gradient of k2 is log pi - log pi_ref = 0.5 for each token.
    torch.testing.assert_close(found.logp, torch.full_like(found.logp, 0.16 * 0.5 / 6))
    literal = gradient(hinge_alone.derive(regularize=HingeKL(gradient="k1")), _apart(0.5))
    torch.testing.assert_close(literal.logp, torch.full_like(found.logp, 0.16 / 6))
    below = gradient(hinge_alone, _apart(0.2))
    assert below.loss == 0 and not below.logp.any(), "free below the threshold"


@pytest.mark.checks("identity", "safe")
@pytest.mark.parametrize("seed", range(3))
def test_with_a_constant_threshold_and_no_floor_it_is_a_one_sided_quadratic(seed: int):
    batch = random_batch(seed, groups=3, samples=4, reference_drift=1.0, drift=0.8)
    on = batch.sampled > 0
    logp = batch.current.logp.detach().clone().requires_grad_()
    apart = (logp - batch.reference["start"].logp)[on].mean()
    threshold = apart.item() - 0.25
    (0.1 * 0.5 * (apart - threshold).clamp_min(0) ** 2).backward()
    method = hinge_alone.derive(regularize=HingeKL(threshold=threshold, entropy_floor=0.0, gradient="k1"))
    found = gradient(method, batch)
    assert found.loss.item() == pytest.approx(0.05 * 0.25**2, rel=1e-6)
    torch.testing.assert_close(found.logp, logp.grad)


@pytest.mark.checks("identity", "safe")
def test_detached_it_is_a_number_of_the_smoothed_divergence():
    # 0.9 * 0.6 + 0.1 * 0.5 = 0.59: 0.29 above the threshold, gate 4.
    batch = _apart(0.5)
    plain = gradient(safe.derive(regularize=None), batch)
    found = gradient(safe.derive(regularize=HingeKL(detached=True, previous=0.6)), batch)
    assert (found.loss - plain.loss).item() == pytest.approx(0.1 * 4 * 0.29**2, rel=1e-9)
    assert torch.equal(found.logp, plain.logp)


@pytest.mark.checks("identity", "safe")
def test_with_its_parts_off_it_is_ppo():
    batch = random_batch(seed=4)
    reverted = safe.derive(
        advantage=ppo.advantage,
        shape=ppo.shape,
        regularize=(EntropyBonus(weight=0.0), HingeKL(weight=0.0)),
        models=ppo.models,
    )
    assert_same(gradient(reverted, batch), gradient(ppo, batch), exact=True)


@pytest.mark.checks("identity", "safe")
def test_at_the_start_the_hinge_is_silent():
    batch = at_proximal(random_batch(seed=5, reference_drift=0.0))
    assert_same(gradient(safe, batch), gradient(safe.derive(regularize=EntropyBonus(weight=0.01)), batch), exact=True)


# -- the threshold ---------------------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "safe", by="the released controller, run on the same rewards")
def test_the_threshold_follows_the_reward_as_the_released_controller_does():
    controller = PhasedThreshold()
    state, seen = controller.init(), []
    for reward in (0.0, 1.0, 0.0, 0.5):
        state = controller.update(state, None, {"reward": reward, "kl_start": 0.2})
        seen.append(controller.threshold(state))
    # The second by hand: error 0.05 - 0.001, adjustment 0.36 * 0.049, times 1.5 in the warm-up.
    assert seen == pytest.approx([0.45, (0.3 + 0.36 * 0.049) * 1.5, 0.44517, 0.4626225], rel=1e-9)
    assert controller.knobs(state, 0.0)["regularize.1.previous"] == pytest.approx(0.2 * (1 - 0.9**4))


@pytest.mark.checks("identity", "safe")
def test_phases():
    controller = PhasedThreshold(window=4)
    state = {**controller.init(), "rewards": [0.1, 0.1, 0.1]}
    assert controller.phase(state) == "warm-up"
    assert controller.phase({**state, "rewards": [0.1] * 4}) == "plateau"
    assert controller.phase({**state, "rewards": [0.1] * 4 + [0.2] * 4}) == "climbing"
    assert controller.phase({**state, "rewards": [0.9] * 8}) == "converged"
    assert controller.threshold({**state, "rewards": [0.9] * 8, "adjustment": 9.0}) == 0.6
    assert controller.threshold({**state, "rewards": [0.1] * 8, "adjustment": -9.0}) == 0.1


@pytest.mark.checks("learns", "safe")
def test_a_run_has_two_heads_and_moves_its_threshold(tmp_path):
    sizes = {"steps": 3, "tasks_per_step": 4, "passes": 2, "warm_start": 0.0, "eval_problems": 4}
    run = up.train("safe", "reverse:length=2", model="tiny:layers=1,width=32", **sizes, out=tmp_path / "run")
    head = run.policy.heads["value"]
    assert isinstance(head, SoftMinimum) and head.outputs.weight.shape == (2, 32)
    assert all(record["grad_norm"] > 0 for record in run.metrics)


def test_nonsense_is_refused():
    with pytest.raises(MethodError, match="outputs is 0"):
        PessimisticValue(outputs=0)
    with pytest.raises(MethodError, match="softness is 0"):
        PessimisticValue(softness=0.0)
    with pytest.raises(MethodError, match="smoothing=1"):
        HingeKL(smoothing=1.0)
    with pytest.raises(MethodError, match="window=0"):
        PhasedThreshold(window=0)
    with pytest.raises(MethodError, match="'start'"):
        gradient(hinge_alone, _apart(0.1).replace(reference={}))
