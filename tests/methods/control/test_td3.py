"""TD3: updates beside Stable-Baselines3, and what it shares with SAC."""

from __future__ import annotations

import pytest
import torch
from beside_off_policy import (
    ACTIONS,
    NARROW,
    ROWS,
    GivenNoise,
    OurUpdates,
    assert_bitwise_equal,
    assert_same_weights,
    linears,
    our_policy,
    random_noise,
    random_rows,
    take_weights,
    their_agent,
)

from upslope.methods import find

UPDATES = 4
td3 = find("td3").with_knobs(NARROW)


@pytest.mark.checks("oracle", "td3", by="Stable-Baselines3")
def test_updates_are_those_of_stable_baselines(monkeypatch: pytest.MonkeyPatch):
    """The actor and the slowly following copies move at every second of them."""
    from stable_baselines3 import TD3

    batches = [random_rows(seed) for seed in range(UPDATES)]
    blur = [torch.randn(ROWS, ACTIONS, generator=torch.Generator().manual_seed(9 + seed), dtype=torch.float64)
            for seed in range(UPDATES)]  # fmt: skip
    theirs = their_agent(TD3, batches, monkeypatch)
    policy = our_policy(td3)
    actor, critics = linears(theirs.actor), theirs.critic.q_networks
    take_weights(policy.actor.stack, actor)
    take_weights(policy.networks["q"].stack, *map(linears, critics))
    for name in ("policy", "q"):
        policy.lagged[name].stack.flat.copy_(policy.networks[name].stack.flat)
    theirs.actor_target.load_state_dict(theirs.actor.state_dict())
    theirs.critic_target.load_state_dict(theirs.critic.state_dict())
    ours = OurUpdates(td3, policy, lr=1e-3)
    drawn = iter(blur)
    monkeypatch.setattr(torch.Tensor, "normal_", lambda self, mean, std: self.copy_(mean + std * next(drawn)))
    for rows, noise in zip(batches, blur, strict=True):
        shape = (ROWS, 1, 1, ACTIONS)
        numbers = {"next/lagged/1": torch.zeros(shape), "now/policy/1": torch.zeros(shape), "smoothing": noise.view(shape)}
        found = ours(rows, GivenNoise(numbers))
        theirs.train(1, ROWS)
        told = theirs.logger.name_to_value
        assert found["q_loss"] == pytest.approx(told["train/critic_loss"], abs=1e-10)
        assert ("loss" in found) == (ours.done % 2 == 0)
        assert found.get("loss", 0.0) == pytest.approx(told["train/actor_loss"] if "loss" in found else 0.0, abs=1e-10)
    assert (blur[0].abs() > 2.5).any(), "some of the noise is clipped"
    assert_same_weights(policy.actor.stack, actor, tolerance=1e-10)
    assert_same_weights(policy.networks["q"].stack, *map(linears, critics), tolerance=1e-10)
    assert_same_weights(policy.lagged["policy"].stack, linears(theirs.actor_target), tolerance=1e-10)
    assert_same_weights(policy.lagged["q"].stack, *map(linears, theirs.critic_target.q_networks), tolerance=1e-10)


@pytest.mark.checks("identity", "td3")
def test_it_is_sac_without_entropy_with_a_certain_actor_targets_at_single_actions_and_no_delay():
    """The slowly following policy of rate 1 is the policy itself."""
    every = {"policy.every": 1, "policy.lag_every": 1}
    paid_nothing = {"models.q.target.temperature": 0.0, "surrogate.temperature": 0.0}
    one_critic = {"surrogate.over": "FirstMember", "models.q.weight": 1.0, "models.q.network.hidden": (16, 16)}
    sac = find("sac")
    certain = sac.derive(policy=td3.policy, models={"q": dict(sac.models)["q"]})
    certain = certain.with_knobs(every | paid_nothing | one_critic | {"policy.lag": 0.0})
    plain = td3.with_knobs(every | {"policy.lag": 1.0, "models.q.lag_every": 1, "models.q.target.noise": 0.0})
    ours, other = our_policy(plain), our_policy(certain)
    left, right = OurUpdates(plain, ours, lr=1e-3), OurUpdates(certain, other, lr=1e-3)
    for seed in range(3):
        left(random_rows(seed), random_noise(seed))
        right(random_rows(seed), random_noise(seed))
    assert_bitwise_equal(ours, other)
