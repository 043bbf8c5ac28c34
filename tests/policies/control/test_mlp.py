"""MLP policies: their distributions, their first weights, and that they survive files."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from upslope.errors import UserError
from upslope.policies.control.mlp import MLPPolicy

torch.set_num_threads(1)


@pytest.mark.parametrize("continuous", [False, True])
def test_log_probability_and_entropy_are_those_of_the_distribution(continuous):
    policy = MLPPolicy(5, 3, continuous, seed=1)
    policy.actor[-1].weight.data.mul_(100)
    observation = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    output = torch.from_numpy(policy.actor.forward(observation.numpy())[0])
    if continuous:
        policy.log_std.data.copy_(torch.tensor([-1.0, 0.0, 0.5]))
        noise = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
        oracle = torch.distributions.Independent(torch.distributions.Normal(output, policy.log_std.detach().exp()), 1)
    else:
        noise = torch.rand(64, generator=torch.Generator().manual_seed(1))
        oracle = torch.distributions.Categorical(logits=output)
    acted = policy.act(observation, noise)
    torch.testing.assert_close(acted.logp, oracle.log_prob(acted.action), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(acted.entropy, oracle.entropy(), atol=1e-5, rtol=1e-5)
    assert acted.value is None
    greedy = policy.act(observation, noise, greedy=True).action
    torch.testing.assert_close(greedy, output if continuous else output.argmax(-1), atol=1e-5, rtol=1e-5)


def test_discrete_actions_come_as_often_as_they_are_likely_and_never_at_probability_zero():
    policy = MLPPolicy(1, 4, False)
    policy.actor[-1].weight.data.zero_()
    policy.actor[-1].bias.data.copy_(torch.tensor([-torch.inf, math.log(0.3), math.log(0.7), -torch.inf]))
    noise = torch.cat([torch.linspace(0, 1, 10_001)[:-1], torch.tensor([1 - 2**-24])])
    action = policy.act(torch.zeros(len(noise), 1), noise).action
    assert torch.bincount(action, minlength=4).tolist()[::3] == [0, 0]
    assert (action == 1).float().mean() == pytest.approx(0.3, abs=1e-3)


def test_weights_start_orthogonal_with_the_usual_gains_from_their_own_seed():
    before = torch.random.get_rng_state()
    policy = MLPPolicy(10, 4, True, seed=0)
    policy.add_value_head(1)
    assert torch.equal(before, torch.random.get_rng_state())
    for stack, head_gain in ((policy.actor, 0.01), (policy.critic, 1.0)):
        for layer, gain in zip(stack, (math.sqrt(2), math.sqrt(2), head_gain), strict=True):
            weight = layer.weight.detach()
            singular = torch.linalg.svdvals(weight)
            torch.testing.assert_close(singular, torch.full_like(singular, gain), atol=1e-5, rtol=1e-4)
            assert not layer.bias.any()
    assert policy.log_std.tolist() == [0.0] * 4
    same, another = MLPPolicy(10, 4, True, seed=0), MLPPolicy(10, 4, True, seed=1)
    assert torch.equal(same.actor[0].weight, policy.actor[0].weight)
    assert not torch.equal(another.actor[0].weight, policy.actor[0].weight)


def test_an_actor_keeps_the_weights_it_was_made_with():
    policy = MLPPolicy(2, 2, False)
    actor, observation = policy.acting(), np.ones((1, 2), np.float32)
    before = actor.output(observation)
    policy.actor[0].weight.data.zero_()
    assert np.array_equal(actor.output(observation), before) and not np.array_equal(policy.acting().output(observation), before)


def test_a_saved_policy_is_rebuilt_from_its_folder(tmp_path):
    policy = MLPPolicy(3, 2, True, hidden=(8,), activation="relu", seed=7)
    policy.add_value_head(8)
    policy.log_std.data.fill_(0.3)
    policy.save(tmp_path)
    again = MLPPolicy.from_folder(tmp_path)
    assert again.sizes == policy.sizes and again.parameter_count() == policy.parameter_count()
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), policy.state_dict().values(), strict=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.safetensors"]
    with pytest.raises(UserError, match="must be the same"):
        MLPPolicy(3, 2, True, hidden=(9,)).load(tmp_path)
    with pytest.raises(UserError, match=r"no policy\.json"):
        MLPPolicy.from_folder(tmp_path / "nothing")


def test_a_frozen_copy_does_not_follow_and_does_not_learn():
    policy = MLPPolicy(3, 2, True)
    copy = policy.frozen_copy()
    policy.log_std.data.fill_(1.0)
    assert not copy.log_std.any() and not any(parameter.requires_grad for parameter in copy.parameters())
    assert [len(group) for group in policy.trainable().values()] == [1, 0]
    policy.add_value_head(0)
    assert [len(group) for group in policy.trainable().values()] == [1, 1]


def test_an_unknown_activation_is_refused_with_a_suggestion():
    with pytest.raises(UserError, match="Did you mean 'tanh'"):
        MLPPolicy(3, 2, True, activation="tan")
