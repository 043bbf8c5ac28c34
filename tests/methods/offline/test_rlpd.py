"""RLPD: SAC where its changes are off, and its ensemble beside torchrl's REDQ."""

from __future__ import annotations

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
    layers_of,
    linears,
    mlp,
    our_policy,
    parameters_in_order,
    queue_normals,
    random_noise,
    random_rows,
    take_weights,
    their_rows,
)
from torch import Tensor, nn

from upslope.methods import find

MEMBERS, UPDATES = 10, 3
rlpd = find("rlpd").with_knobs(NARROW)
AT_ONCE = {"policy.every": 1, "models.temperature.every": 1}


@pytest.mark.checks("identity", "rlpd")
@pytest.mark.parametrize("continuous", [True, False])
def test_with_two_plain_critics_and_no_delay_it_is_sac(continuous: bool):
    two = {"models.q.network.members": 2, "models.q.network.layer_norm": False, "models.q.weight": 0.5}
    plain = rlpd.with_knobs(AT_ONCE | two | {"surrogate.over": "SmallestMember"})
    sac = find("sac").with_knobs(NARROW)
    ours, other = our_policy(plain, continuous), our_policy(sac, continuous)
    left, right = OurUpdates(plain, ours, lr=1e-3), OurUpdates(sac, other, lr=1e-3)
    for seed in range(3):
        left(random_rows(seed, continuous), random_noise(seed))
        right(random_rows(seed, continuous), random_noise(seed))
    assert_bitwise_equal(ours, other)


class _Gaussian(nn.Module):
    """An actor of theirs, whose spread is an exponential as ours is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp(OBSERVATION, 2 * ACTIONS, seed=1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.layers(observation).split(ACTIONS, -1)
        return mean, log_std.exp()


class _Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (OBSERVATION + ACTIONS, *HIDDEN)
        hidden = [(nn.Linear(*pair), nn.LayerNorm(pair[1]), nn.ReLU()) for pair in zip(widths, HIDDEN, strict=False)]
        self.layers = nn.Sequential(*(each for layer in hidden for each in layer), nn.Linear(HIDDEN[-1], 1)).double()

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.layers(torch.cat([observation, action], -1))


@pytest.mark.checks("oracle", "rlpd", by="torchrl")
def test_updates_are_those_of_redq_in_torchrl(monkeypatch: pytest.MonkeyPatch):
    """Targets take the smallest of two drawn critics, the actor the mean of all ten. Temperatures stand still: theirs moves by its
    value, ours by its logarithm."""
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import REDQLoss, SoftUpdate

    method = rlpd.with_knobs(AT_ONCE | {"models.temperature.lr_scale": 0.0})
    actor = ProbabilisticActor(
        TensorDictModule(_Gaussian(), in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"], distribution_class=TanhNormal, distribution_kwargs={"tanh_loc": False, "safe_tanh": False},
        return_log_prob=True,
    )  # fmt: skip
    critic = ValueOperator(_Critic(), in_keys=["observation", "action"])
    loss = REDQLoss(actor, critic, num_qvalue_nets=MEMBERS, sub_sample_len=2, loss_function="l2", fixed_alpha=True,
                    target_entropy=-float(ACTIONS))  # fmt: skip
    loss.make_value_estimator(gamma=0.99)
    copies = SoftUpdate(loss, tau=0.005)
    optimizers = [
        torch.optim.Adam(parameters_in_order(each), lr=3e-4) for each in (loss.qvalue_network_params, loss.actor_network_params)
    ]
    policy = our_policy(method)
    take_weights(policy.actor.stack, linears(actor))
    for networks, theirs in ((policy.networks, loss.qvalue_network_params), (policy.lagged, loss.target_qvalue_network_params)):
        take_weights(networks["q"].stack, *(layers_of(theirs, member) for member in range(MEMBERS)))
    ours, drawn = OurUpdates(method, policy, lr=3e-4), []
    queue_normals(monkeypatch, drawn)
    for seed in range(UPDATES):
        random = torch.Generator().manual_seed(seed)
        numbers = torch.randn(2, ROWS, ACTIONS, generator=random, dtype=torch.float64)
        members = torch.rand(MEMBERS, generator=random, dtype=torch.float64)
        monkeypatch.setattr(torch, "randperm", lambda count, members=members, **more: members.argsort())
        drawn += [numbers, numbers]
        rows = random_rows(seed)
        noise = {f"{at}/policy/1": each.view(ROWS, 1, 1, ACTIONS) for at, each in zip(("now", "next"), numbers, strict=True)}
        found = ours(rows, GivenNoise(noise | {"members": members}))
        first = loss(their_rows(rows))
        optimizers[0].zero_grad()
        first["loss_qvalue"].backward()
        optimizers[0].step()
        then = loss(their_rows(rows))  # the actor looks at the critics after their update
        optimizers[1].zero_grad()
        then["loss_actor"].backward()
        optimizers[1].step()
        copies.step()
        assert found["q_loss"] == pytest.approx(first["loss_qvalue"].item(), rel=1e-6)
        assert found["loss"] == pytest.approx(then["loss_actor"].item(), rel=1e-6)
    assert_same_weights(policy.actor.stack, layers_of(loss.actor_network_params), tolerance=1e-6)
    for networks, theirs in ((policy.networks, loss.qvalue_network_params), (policy.lagged, loss.target_qvalue_network_params)):
        assert_same_weights(networks["q"].stack, *(layers_of(theirs, member) for member in range(MEMBERS)), tolerance=1e-6)


def test_the_actor_and_the_temperature_move_at_every_tenth_update():
    policy = our_policy(rlpd)
    updates, moved = OurUpdates(rlpd, policy, lr=1e-3), []
    for seed in range(20):
        before = {name: policy.networks[name].stack.flat.detach().clone() for name in ("policy", "temperature", "q")}
        updates(random_rows(seed), random_noise(seed))
        moved.append(tuple(name for name, weights in before.items() if not torch.equal(weights, policy.networks[name].stack.flat)))
    assert moved == [("policy", "temperature", "q") if number % 10 == 9 else ("q",) for number in range(20)]
