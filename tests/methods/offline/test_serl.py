"""SERL: RLPD with other settings, and the released losses written out in plain torch."""

from __future__ import annotations

import pytest
import torch
from stored_rows import EPS, SMALL, SPACE, Small, assert_same_weights, drawn_rows
from torch import Tensor

from upslope.methods import find
from upslope.types import Trajectories

serl, rlpd = find("serl").with_knobs(SMALL), find("rlpd").with_knobs(SMALL)
LR, MEMBERS = 1e-3, 10


@pytest.mark.checks("identity", "serl")
def test_with_its_settings_undone_it_is_rlpd():
    undone = serl.with_knobs({
        "policy.activation": "relu", "policy.layer_norm": False, "policy.every": 10, "models.q.network.activation": "relu",
        "models.q.target.entropy": True, "models.temperature.start": 1.0, "models.temperature.every": 10,
        "data.capacity": rlpd.data[0].capacity,
    }).derive(acting=rlpd.acting)  # fmt: skip
    assert not undone.diff(rlpd)
    ours, theirs = Small(undone), Small(rlpd)
    for update in (9, 10):
        ours.update(drawn_rows(update), update)
        theirs.update(drawn_rows(update), update)
    assert_same_weights(ours.weights(), theirs.weights())


def layers(weights: dict[str, Tensor], network: str, inputs: Tensor, member: int = 0) -> Tensor:
    """Layer norm and tanh behind each hidden layer."""
    for layer in range(3):
        inputs = inputs @ weights[f"{network}.{layer}.weight"][member] + weights[f"{network}.{layer}.bias"][member]
        if layer < 2:
            centred = inputs - inputs.mean(1, keepdim=True)
            inputs = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
            inputs = (inputs * weights[f"{network}.{layer}.scale"][member] + weights[f"{network}.{layer}.shift"][member]).tanh()
    return inputs


class Released:
    """The losses of the suite's SAC from states, with given noise and given critics; its temperature stands still."""

    def __init__(self, weights: dict[str, Tensor]):
        self.weights = {name: weight.clone().requires_grad_(not name.startswith("lagged")) for name, weight in weights.items()}
        self.optimizers = {
            network: torch.optim.Adam([w for name, w in self.weights.items() if name.startswith(f"{network}.")], lr=LR, eps=EPS)
            for network in ("q", "policy")
        }

    def sample(self, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = layers(self.weights, "policy", state).chunk(2, 1)
        spread = torch.distributions.Normal(mean, log_std.exp())
        raw = mean + log_std.exp() * noise
        return raw.tanh(), (spread.log_prob(raw) - torch.log(1 - raw.tanh().square())).sum(1, keepdim=True)

    def q(self, state: Tensor, action: Tensor, kind: str = "q") -> Tensor:
        return torch.stack([layers(self.weights, kind, torch.cat([state, action], 1), member) for member in range(MEMBERS)])

    def descend(self, network: str, loss: Tensor) -> None:
        for each in self.optimizers.values():
            each.zero_grad()
        loss.backward()
        self.optimizers[network].step()

    def update(self, rows: Trajectories, number: int, noise: dict[str, Tensor], chosen: Tensor) -> None:
        state, following = rows.inputs.observation[:, 0], rows.inputs.following[:, 0]
        with torch.no_grad():
            next_action, _ = self.sample(following, noise["next"])
            behind = self.q(following, next_action, "lagged.q")[chosen].min(0).values
            target = rows.step_reward + rows.signal["discount"] * behind
        self.descend("q", (self.q(state, rows.action[:, 0]) - target).square().mean())
        if number % 4 == 0:
            action, logp = self.sample(state, noise["now"])
            self.descend("policy", -(self.q(state, action).mean(0) - 0.01 * logp).mean())
        for name, weight in self.weights.items():
            if name.startswith("lagged."):
                weight.mul_(0.995).add_(0.005 * self.weights[name.removeprefix("lagged.")].detach())


@pytest.mark.checks("oracle", "serl", by="the suite's losses written out in plain torch: all weights after several updates")
def test_updates_are_those_of_the_released_losses():
    small = Small(serl.with_knobs({"models.temperature.lr_scale": 0.0}), lr=LR)
    theirs, first = Released(small.weights()), small.weights()
    for update in range(1, 9):
        rows, draw = drawn_rows(update), small.noise(update)
        shape = (24, 1, 1, SPACE.actions)
        noise = {at: draw("normal", f"{at}/policy/1", shape).view(24, -1) for at in ("now", "next")}
        theirs.update(rows, update, noise, draw("uniform", "members", (MEMBERS,)).argsort()[:2])
        small.update(rows, update)
    assert_same_weights(small.weights(), {name: weight.detach() for name, weight in theirs.weights.items()}, atol=1e-5)
    moved = {name: (weight - first[name]).abs().max() for name, weight in small.weights().items()}
    assert all(far > 5e-4 for name, far in moved.items() if name.startswith(("q.", "policy.")))
