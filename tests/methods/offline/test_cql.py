"""CQL: updates beside d3rlpy, SAC where its penalty is off, and a dataset without half of the actions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from beside_off_policy import (
    ACTIONS,
    HIDDEN,
    NARROW,
    OBSERVATION,
    ROWS,
    GivenNoise,
    OurUpdates,
    assert_bitwise_equal,
    assert_same_weights,
    linears,
    our_policy,
    queue_normals,
    random_noise,
    random_rows,
    take_weights,
    their_learner,
    their_minibatch,
)
from torch import Tensor

from upslope.methods import find
from upslope.objective.critics.conservative import Conservative
from upslope.types import Method

UPDATES, SAMPLES = 3, 10
cql = find("cql").with_knobs(NARROW)


def normals(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def beside_d3rlpy(method: Method, config: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Both after the same updates: their learner and our policy.

    They draw in this order: the next action of the target, the policy's actions here and at the next state, uniform ones; then the
    actor's own.
    """
    theirs, policy = their_learner(config), our_policy(method)
    modules = theirs._modules
    actor = [*linears(modules.policy._encoder), (modules.policy._mu, modules.policy._logstd)]
    take_weights(policy.actor.stack, actor)
    for stack, q_functions in ((policy.networks, modules.q_funcs), (policy.lagged, modules.targ_q_funcs)):
        take_weights(stack["q"].stack, *map(linears, q_functions))
    ours, queue, uniforms = OurUpdates(method, policy, lr=3e-5), [], []
    queue_normals(monkeypatch, queue)
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda self, low, high: low + (high - low) * uniforms.pop(0))
    for seed in range(UPDATES):
        target, own = normals(4 * seed, ROWS, ACTIONS), normals(4 * seed + 1, ROWS, ACTIONS)
        here, there = (normals(4 * seed + place, SAMPLES, ROWS, ACTIONS) for place in (2, 3))
        uniform = torch.rand(ROWS * SAMPLES, ACTIONS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        queue += [target, here, there, own]
        uniforms.append(uniform)
        numbers = {
            "next/policy/1": target.view(ROWS, 1, 1, ACTIONS),
            "now/policy/1": own.view(ROWS, 1, 1, ACTIONS),
            f"now/policy/{SAMPLES}": here.transpose(0, 1).unsqueeze(1),
            f"next/policy/{SAMPLES}": there.transpose(0, 1).unsqueeze(1),
            f"now/uniform/{SAMPLES}": uniform.view(ROWS, 1, SAMPLES, ACTIONS),
        }
        rows, noise = random_rows(seed), GivenNoise(numbers)
        found = ours(rows, noise)
        told = theirs.inner_update(their_minibatch(rows), seed)
        assert noise.asked == numbers.keys()
        assert found["loss"] == pytest.approx(told["actor_loss"], abs=1e-9)
        given = method.learned[0][1]
        if not hasattr(given, "wanted"):  # they subtract a constant that has no gradient
            assert found["q_loss"] == pytest.approx(told["critic_loss"], rel=1e-7), "they add up in single precision"
    assert_same_weights(policy.actor.stack, actor, tolerance=1e-9)
    assert_same_weights(policy.networks["q"].stack, *map(linears, modules.q_funcs), tolerance=1e-9)
    assert_same_weights(policy.lagged["q"].stack, *map(linears, modules.targ_q_funcs), tolerance=1e-9)
    return theirs, policy


def settings_of_theirs() -> dict[str, Any]:
    """Without learned temperatures, which they learn by another formula; with the entropy in the target."""
    from d3rlpy.models.encoders import VectorEncoderFactory

    encoder = VectorEncoderFactory(list(HIDDEN))
    rates = dict(actor_learning_rate=3e-5, critic_learning_rate=3e-4, temp_learning_rate=0.0, alpha_learning_rate=0.0)
    return dict(actor_encoder_factory=encoder, critic_encoder_factory=encoder, soft_q_backup=True, **rates)


LIKE_THEIRS = {"models.temperature.lr_scale": 0.0, "models.q.target.entropy": True}


@pytest.mark.checks("oracle", "cql", by="d3rlpy")
def test_updates_are_those_of_d3rlpy(monkeypatch: pytest.MonkeyPatch):
    from d3rlpy.algos import CQLConfig

    beside_d3rlpy(cql.with_knobs(LIKE_THEIRS), CQLConfig(alpha_threshold=0.0, **settings_of_theirs()), monkeypatch)


@pytest.mark.checks("oracle", "cql", by="d3rlpy")
def test_a_learned_multiplier_moves_as_that_of_d3rlpy(monkeypatch: pytest.MonkeyPatch):
    from d3rlpy.algos import CQLConfig

    method = cql.with_knobs(
        {"models.m": "PenaltyMultiplier(wanted=3.0, lr_scale=30.0)", "models.q.penalty.multiplier": "m"} | LIKE_THEIRS
    )
    config = CQLConfig(alpha_threshold=3.0, **settings_of_theirs() | {"alpha_learning_rate": 9e-4})
    theirs, policy = beside_d3rlpy(method, config, monkeypatch)
    found, told = policy.networks["m"].stack.flat, next(theirs._modules.log_alpha.parameters())
    assert abs(found.item()) > 1e-3
    assert found.item() == pytest.approx(told.item(), abs=1e-9)


@pytest.mark.checks("identity", "cql")
@pytest.mark.parametrize("continuous", [True, False])
def test_without_its_penalty_it_is_sac(continuous: bool):
    """At equal rates, with the entropy in the target and half the squares."""
    free = cql.with_knobs({"models.q.penalty.weight": 0.0, "models.q.lr_scale": 1.0, "models.q.weight": 0.5,
                           "models.q.target.entropy": True})  # fmt: skip
    sac = find("sac").with_knobs(NARROW)
    ours, other = our_policy(free, continuous), our_policy(sac, continuous)
    left, right = OurUpdates(free, ours, lr=1e-3), OurUpdates(sac, other, lr=1e-3)
    for seed in range(3):
        left(random_rows(seed, continuous), random_noise(seed))
        right(random_rows(seed, continuous), random_noise(seed))
    assert_bitwise_equal(ours, other)


def test_over_choices_the_gap_is_exact():
    """Hand-worked: values 1, 2, 3, the second recorded, tau 2: 2 log(e^0.5 + e^1 + e^1.5) - 2 = 2.360."""
    policy = our_policy(cql, continuous=False)
    for piece in policy.networks["q"].stack.frozen.values():
        piece.zero_()
    policy.networks["q"].stack.frozen["2.bias"].copy_(torch.tensor([1.0, 2.0, 3.0]))
    rows = random_rows(0, continuous=False)
    rows = rows.replace(action=torch.ones_like(rows.action))
    found = OurUpdates(cql.with_knobs({"models.q.penalty.temperature": 2.0}), policy, lr=1e-3)(rows, random_noise(0))
    gap = 2 * math.log(math.exp(0.5) + math.exp(1) + math.exp(1.5)) - 2
    assert gap == pytest.approx(2.3606, abs=1e-4)
    assert found["q_penalty"] == pytest.approx(2 * 5 * gap, abs=1e-9), "two critics, weight 5"


def test_without_importance_nothing_is_subtracted():
    """All values are equal, so the sum is their number: log 30 with everybody's density at one, whoever drew."""
    policy = our_policy(cql)
    for piece in policy.networks["q"].stack.frozen.values():
        piece.zero_()
    plain = cql.with_knobs({"models.q.penalty.importance": False})
    found = OurUpdates(plain, policy, lr=1e-3)(random_rows(0), random_noise(0))
    assert found["q_penalty"] == pytest.approx(2 * 5 * math.log(3 * SAMPLES), abs=1e-9)


def test_a_warm_up_clones_the_recorded_actions():
    """Only the recorded action is pulled to, and its likelihood rises; a controller ends it."""
    method = cql.with_knobs({
        "surrogate.imitation": 1.0, "controller": 'ThenWhole(after=0.1, knob="surrogate.imitation")', "surrogate.temperature": 0.0,
    })  # fmt: skip
    controller = method.controller[0]
    assert controller.knobs({}, 0.0) == {} and controller.knobs({}, 0.1) == {"surrogate.imitation": 0}
    policy, rows = our_policy(method), random_rows(0)
    updates = OurUpdates(method, policy, lr=3e-3)
    first = updates(rows, random_noise(0))
    assert first["loss"] == pytest.approx(-first["logp_data"], abs=1e-9)
    for seed in range(40):
        last = updates(rows, random_noise(seed))
    assert last["logp_data"] > first["logp_data"] + 0.5


def _half_of_the_actions(method: Method, seed: int) -> Tensor:
    """Values at actions above a half, after learning from rewards -|a| of actions below zero alone; each episode is one step."""
    policy = our_policy(method, seed=seed)
    updates = OurUpdates(method, policy, lr=3e-3)
    rows = random_rows(seed, rows=32)
    still = torch.zeros_like(rows.inputs.observation)
    for update in range(120):
        action = -torch.rand(32, 1, ACTIONS, generator=torch.Generator().manual_seed(update), dtype=torch.float64)
        updates(
            rows.replace(
                action=action, step_reward=-action.abs().mean(-1), signal=rows.signal | {"discount": torch.zeros(32, 1)},
                inputs=type(rows.inputs)(still, still),
            ),
            random_noise(update),
        )  # fmt: skip
    missing = torch.linspace(0.5, 1.0, 6, dtype=torch.float64).view(6, 1, 1, 1).expand(6, 1, 1, ACTIONS)
    return policy.networks["q"].answer(torch.zeros(6, 1, OBSERVATION, dtype=torch.float64), missing, True).mean(0).squeeze()


@pytest.mark.checks("oracle", "cql", by="a bandit with known values")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_actions_that_the_data_leave_out_are_valued_below_the_truth_and_by_td3_above_it(seed: int):
    true = -torch.linspace(0.5, 1.0, 6, dtype=torch.float64)
    careful = cql.with_knobs({"models.q.lr_scale": 1.0})
    assert (_half_of_the_actions(careful, seed) < true).all()
    assert (_half_of_the_actions(find("td3").with_knobs(NARROW), seed) > true).all()


def test_what_it_needs_and_refuses():
    assert "signal.return_to_go" not in cql.needs()
    assert "signal.return_to_go" in Conservative(calibrated=True).needs()
