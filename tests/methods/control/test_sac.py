"""SAC: updates beside Stable-Baselines3 and, over choices, torchrl."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from beside_off_policy import (
    ACTIONS,
    NARROW,
    OBSERVATION,
    ROWS,
    GivenNoise,
    Layer,
    OurUpdates,
    assert_bitwise_equal,
    assert_same_weights,
    layers_of,
    linears,
    mlp,
    our_policy,
    parameters_in_order,
    queue_normals,
    random_noise,
    random_rows,
    take_weights,
    their_agent,
    their_rows,
)

from upslope.methods import find

UPDATES = 3
sac = find("sac").with_knobs(NARROW)


def _normal(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, ACTIONS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.checks("oracle", "sac", by="Stable-Baselines3")
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_updates_are_those_of_stable_baselines(epsilon: float, monkeypatch: pytest.MonkeyPatch):
    """They add 1e-6 inside the logarithm of tanh's derivative, where ours is exact: without it all agrees to rounding."""
    from stable_baselines3 import SAC

    batches = [random_rows(seed) for seed in range(UPDATES)]
    now, following = ([_normal(10 * seed + place) for seed in range(UPDATES)] for place in (1, 2))
    theirs = their_agent(SAC, batches, monkeypatch)
    theirs.actor.action_dist.epsilon = epsilon
    theirs.log_ent_coef.data = theirs.log_ent_coef.data.double()
    policy = our_policy(sac)
    actor, critics = [*linears(theirs.actor.latent_pi), (theirs.actor.mu, theirs.actor.log_std)], theirs.critic.q_networks
    take_weights(policy.actor.stack, actor)
    take_weights(policy.networks["q"].stack, *map(linears, critics))
    policy.lagged["q"].stack.flat.copy_(policy.networks["q"].stack.flat)
    theirs.critic_target.load_state_dict(theirs.critic.state_dict())
    ours = OurUpdates(sac, policy, lr=3e-4)
    queue_normals(monkeypatch, [each for pair in zip(now, following, strict=True) for each in pair])
    tolerance = 1e-10 if epsilon == 0 else 1e-5
    for rows, here, there in zip(batches, now, following, strict=True):
        numbers = {"now/policy/1": here.view(ROWS, 1, 1, ACTIONS), "next/policy/1": there.view(ROWS, 1, 1, ACTIONS)}
        found = ours(rows, GivenNoise(numbers))
        theirs.train(1, ROWS)
        told = theirs.logger.name_to_value
        assert found["q_loss"] == pytest.approx(told["train/critic_loss"], rel=tolerance)
        assert found["loss"] == pytest.approx(told["train/actor_loss"], rel=tolerance)
        assert found["temperature_loss"] == pytest.approx(told["train/ent_coef_loss"], rel=tolerance)
    assert_same_weights(policy.actor.stack, actor, tolerance=tolerance)
    assert_same_weights(policy.networks["q"].stack, *map(linears, critics), tolerance=tolerance)
    assert_same_weights(policy.lagged["q"].stack, *map(linears, theirs.critic_target.q_networks), tolerance=tolerance)
    torch.testing.assert_close(policy.networks["temperature"].stack.flat, theirs.log_ent_coef, rtol=0, atol=tolerance)


@pytest.mark.checks("oracle", "sac", by="torchrl")
def test_over_choices_updates_are_those_of_torchrl():
    """Their critic loss is a sum over critics of squares without the half, and so ours is at weight 1."""
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor, QValueActor
    from torchrl.objectives import DiscreteSACLoss, SoftUpdate

    method = sac.with_knobs({"models.q.weight": 1.0})
    actor_net, critic_net = (mlp(OBSERVATION, ACTIONS, seed) for seed in (1, 2))
    actor = ProbabilisticActor(
        TensorDictModule(actor_net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"], out_keys=["action"], distribution_class=torch.distributions.Categorical,
    )  # fmt: skip
    critic = QValueActor(critic_net, in_keys=["observation"], action_space="categorical")
    loss = DiscreteSACLoss(
        actor, critic, action_space="categorical", num_actions=ACTIONS, num_qvalue_nets=2, loss_function="l2",
        target_entropy_weight=0.98, target_entropy="auto",
    ).double()  # fmt: skip
    loss.make_value_estimator(gamma=0.99)
    copies = SoftUpdate(loss, tau=0.005)
    learned = [*map(parameters_in_order, (loss.qvalue_network_params, loss.actor_network_params)), [loss.log_alpha]]
    optimizers = [torch.optim.Adam(parameters, lr=3e-4) for parameters in learned]

    def their_critics(parameters: Any) -> list[list[Layer]]:
        return [layers_of(parameters, member) for member in range(2)]

    policy = our_policy(method, continuous=False)
    take_weights(policy.actor.stack, linears(actor_net))
    take_weights(policy.networks["q"].stack, *their_critics(loss.qvalue_network_params))
    take_weights(policy.lagged["q"].stack, *their_critics(loss.target_qvalue_network_params))
    ours = OurUpdates(method, policy, lr=3e-4)
    for seed in range(UPDATES):
        rows = random_rows(seed, continuous=False)
        found = ours(rows, GivenNoise({}))
        first = loss(their_rows(rows))
        optimizers[0].zero_grad()
        first["loss_qvalue"].backward()
        optimizers[0].step()
        then = loss(their_rows(rows))  # the actor looks at the critics after their update
        for optimizer in optimizers[1:]:
            optimizer.zero_grad()
        (then["loss_actor"] + then["loss_alpha"]).backward()
        for optimizer in optimizers[1:]:
            optimizer.step()
        copies.step()
        assert found["q_loss"] == pytest.approx(first["loss_qvalue"].item(), abs=1e-6)
        assert found["loss"] == pytest.approx(then["loss_actor"].item(), abs=1e-6)
        assert found["temperature_loss"] == pytest.approx(then["loss_alpha"].item(), abs=1e-6)
    assert_same_weights(policy.actor.stack, layers_of(loss.actor_network_params), tolerance=1e-6)
    assert_same_weights(policy.networks["q"].stack, *their_critics(loss.qvalue_network_params), tolerance=1e-6)
    assert_same_weights(policy.lagged["q"].stack, *their_critics(loss.target_qvalue_network_params), tolerance=1e-6)
    torch.testing.assert_close(policy.networks["temperature"].stack.flat[0], loss.log_alpha, rtol=0, atol=1e-6, check_dtype=False)
    assert loss.target_entropy.item() == pytest.approx(0.98 * math.log(ACTIONS))


@pytest.mark.checks("identity", "sac")
def test_a_temperature_that_does_not_learn_is_a_number():
    fixed = sac.derive(models={"q": dict(sac.models)["q"]}).with_knobs(
        {"models.q.target.temperature": 1.0, "surrogate.temperature": 1.0}
    )
    still = sac.with_knobs({"models.temperature.lr_scale": 0.0, "models.temperature.start": 1.0})
    ours, other = our_policy(still), our_policy(fixed)
    left, right = OurUpdates(still, ours, lr=1e-3), OurUpdates(fixed, other, lr=1e-3)
    for seed in range(3):
        left(random_rows(seed), random_noise(seed))
        right(random_rows(seed), random_noise(seed))
    assert_bitwise_equal(ours, other)


@pytest.mark.parametrize("entropy", [True, False])
def test_entropy_may_be_left_out_of_the_target(entropy: bool):
    """By hand: the target is r + 0.99 (min Q - log pi), or that without the logarithm."""
    method = sac.with_knobs({"models.q.target.entropy": entropy, "models.temperature.start": 1.0})
    policy, rows, noise = our_policy(method), random_rows(5), random_noise(5)
    drawn = policy.actor.sample(rows.inputs.following, noise("normal", "next/policy/1", (ROWS, 1, 1, ACTIONS)), True)
    value = policy.lagged["q"].answer(rows.inputs.following, drawn.action, True).amin(0).squeeze(-1)
    paid = drawn.logp.squeeze(-1) if entropy else 0.0
    target = rows.step_reward + rows.signal["discount"] * (value - paid)
    found = OurUpdates(method, policy, lr=1e-3)(rows, noise)
    assert found["q_target"] == pytest.approx(target.mean().item(), abs=1e-12)
