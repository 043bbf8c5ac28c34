"""Off-policy MDPO: SAC where the step size is infinite, and its loss worked out with torch's distributions."""

from __future__ import annotations

import pytest
import torch
from beside_off_policy import (
    ACTIONS,
    NARROW,
    OBSERVATION,
    ROWS,
    OurUpdates,
    assert_bitwise_equal,
    assert_same_weights,
    layers_of_stack,
    our_policy,
    random_noise,
    random_rows,
)
from torch import distributions

import upslope as up
from upslope.errors import MethodError
from upslope.learners.actor_critic import check
from upslope.methods import find
from upslope.objective.critics import FirstMember
from upslope.rollout.replay import ReplayRollout

mdpo, sac = (find(name).with_knobs(NARROW) for name in ("mdpo-off", "sac"))
WIDE = {"policy.hidden": (16, 16)}


@pytest.mark.checks("identity", "mdpo-off")
@pytest.mark.parametrize("continuous", [True, False])
def test_with_kappa_at_lambda_it_is_sac_over_the_first_critic_at_a_fixed_temperature(continuous: bool):
    fixed = sac.derive(models={"q": dict(sac.models)["q"]}).with_knobs(
        {"models.q.target.temperature": 0.2, "surrogate.temperature": 0.2, "surrogate.over": FirstMember()}
    )
    free = mdpo.with_knobs({"regularize.0.weight": 0.0, "regularize.1.weight": 0.0})
    ours, other = our_policy(free, continuous), our_policy(fixed, continuous)
    previous = our_policy(free, continuous, seed=1)
    left, right = OurUpdates(free, ours, lr=1e-3), OurUpdates(fixed, other, lr=1e-3)
    for seed in range(3):
        rows = random_rows(seed, continuous)
        left(rows, random_noise(seed), {"previous": previous})
        right(rows, random_noise(seed))
    assert_bitwise_equal(ours, other)


@pytest.mark.checks("oracle", "mdpo-off", by="torch's distributions")
@pytest.mark.parametrize("lam", [0.2, 0.0])
def test_the_actor_moves_as_the_formula_says(lam: float):
    """kappa log pi + (lam - kappa) log pi_old - Q_1, written with torch's own; at lam = 0 what holds the policy is the KL alone."""
    kappa = lam + 0.8
    method = mdpo.with_knobs({"surrogate.temperature": lam, "models.q.target.temperature": lam, "models.q.lr_scale": 0.0})
    policy, previous = our_policy(method), our_policy(method, seed=1)
    rows, noise = random_rows(0), random_noise(0)
    network = layers_of_stack(policy.actor.stack)
    old = layers_of_stack(previous.actor.stack)

    def squashed(output: torch.Tensor) -> distributions.Distribution:
        mean, log_std = output.split(ACTIONS, -1)
        return distributions.TransformedDistribution(
            distributions.Normal(mean, log_std.exp()), distributions.TanhTransform(cache_size=1)
        )

    observation = rows.inputs.observation.view(ROWS, OBSERVATION)
    output = network(observation)
    mean, log_std = output.split(ACTIONS, -1)
    drawn = mean + log_std.exp() * noise("normal", "now/policy/1", (ROWS, 1, 1, ACTIONS)).view(ROWS, ACTIONS)
    action = drawn.tanh()
    value = policy.networks["q"].answer(rows.inputs.observation, action.view(ROWS, 1, 1, ACTIONS), True)[0].view(ROWS)
    logp, logp_old = squashed(output).log_prob(action).sum(-1), squashed(old(observation)).log_prob(action).sum(-1)
    small = 1e-3 * (mean.square().mean(-1) + log_std.square().mean(-1))
    loss = (kappa * logp + (lam - kappa) * logp_old - value + small).mean()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    loss.backward()
    optimizer.step()

    found = OurUpdates(method, policy, lr=1e-3)(rows, noise, {"previous": previous})
    assert found["loss"] == pytest.approx(loss.item(), abs=1e-9)
    assert_same_weights(policy.actor.stack, [each for each in network if isinstance(each, torch.nn.Linear)], tolerance=1e-9)


def test_without_a_policy_to_compare_with_it_is_refused():
    with pytest.raises(MethodError, match="no reference of that name"):
        check(mdpo.derive(references={}), ReplayRollout.provides)


def test_the_policy_compared_with_is_the_one_the_step_began_with(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """At the first update of every step both are one, so the KL there is zero; at the later ones it is not."""
    from upslope.objective.regularize.pathwise import PathwiseKL

    found, call = [], PathwiseKL.__call__
    monkeypatch.setattr(PathwiseKL, "__call__", lambda self, batch: found.append(call(self, batch)) or found[-1])
    given = dict(steps=3, horizon=40, updates_per_step=4, minibatch=8, eval_problems=1, knobs={"acting.steps": 40} | WIDE)
    up.train("mdpo-off", "gym:Pendulum-v1", out=tmp_path / "run", **given)
    sizes = [each.detach().abs().max().item() for each in found]
    assert len(sizes) == 9, "four updates a step, but one in the first, which acts at random"
    assert [sizes[first] for first in (1, 5)] == pytest.approx([0.0, 0.0], abs=1e-4)
    assert min(sizes[4], sizes[8]) > 1e-3
