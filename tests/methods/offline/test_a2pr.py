"""A2PR: the released update written out in plain torch, and TD3+BC where its guide is off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from stored_rows import EPS, HIDDEN, SMALL, SPACE, Small, assert_same_weights, drawn_rows
from torch import Tensor

from upslope.methods import find
from upslope.types import Trajectories

SIZES = {f"models.{name}.network.hidden": HIDDEN for name in ("vae", "value")}
a2pr, td3_bc = find("a2pr").with_knobs(SMALL | SIZES), find("td3-bc").with_knobs(SMALL)
LR = 1e-3


def layers(weights: dict[str, Tensor], network: str, inputs: Tensor, member: int = 0) -> Tensor:
    """A perceptron with three layers."""
    for layer in range(3):
        inputs = inputs @ weights[f"{network}.{layer}.weight"][member] + weights[f"{network}.{layer}.bias"][member]
        inputs = inputs.relu() if layer < 2 else inputs
    return inputs


class Released:
    """One update as the released code makes it, line by line, from given weights and with given noise."""

    def __init__(self, weights: dict[str, Tensor]):
        self.weights = {name: weight.clone().requires_grad_(not name.startswith("lagged")) for name, weight in weights.items()}
        rates = {"q": LR, "value": LR, "vae": LR * 10 / 3, "policy": LR}
        self.optimizers = {
            network: torch.optim.Adam([w for name, w in self.weights.items() if name.startswith(f"{network}.")], lr=rate, eps=EPS)
            for network, rate in rates.items()
        }

    def q(self, member: int, state: Tensor, action: Tensor, kind: str = "q") -> Tensor:
        return layers(self.weights, kind, torch.cat([state, action], 1), member)

    def vae(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = layers(self.weights, "vae.encoder", torch.cat([state, action], 1)).chunk(2, 1)
        std = log_std.clamp(-4, 15).exp()
        return layers(self.weights, "vae.decoder", torch.cat([state, mean + std * noise], 1)).tanh(), mean, std

    def descend(self, network: str, loss: Tensor) -> None:
        optimizer = self.optimizers[network]
        for each in self.optimizers.values():
            each.zero_grad()
        loss.backward()
        optimizer.step()

    def update(self, rows: Trajectories, number: int, noise: Callable[[str, int], Tensor]) -> None:
        state, action, reward = rows.inputs.observation[:, 0], rows.action[:, 0], rows.step_reward
        following, discount, width = rows.inputs.following[:, 0], rows.signal["discount"], SPACE.actions
        with torch.no_grad():
            blur = (noise("smoothing", width) * 0.2).clamp(-0.5, 0.5)
            next_action = (layers(self.weights, "lagged.policy", following).tanh() + blur).clamp(-1, 1)
            target = torch.min(*(self.q(member, following, next_action, "lagged.q") for member in (0, 1)))
            target = reward + discount * target
        self.descend("q", sum((self.q(member, state, action) - target).square().mean() for member in (0, 1)))
        with torch.no_grad():
            cautious = reward + discount * torch.min(*(self.q(member, following, next_action) for member in (0, 1)))
            cautious = torch.min(cautious, target)
        value = layers(self.weights, "value", state)
        before = value.detach().clone()
        self.descend("value", (value - cautious).square().mean())
        rebuilt, mean, std = self.vae(state, action, noise("encoding", 2 * width))
        good = self.q(0, state, action) > before
        kl = -0.5 * (1 + torch.log(std.pow(2)) - mean.pow(2) - std.pow(2)).mean()
        self.descend("vae", (1.0 * good * (rebuilt - action).square()).mean() + 0.5 * kl)
        if number % 2:
            return
        own = layers(self.weights, "policy", state).tanh()
        worth = self.q(0, state, own)
        made, _, _ = self.vae(state, own, noise("guide", 2 * width))
        of_data, of_made = self.q(0, state, action), self.q(0, state, made)
        guide = made * (of_made - before >= of_data - before) + action * (of_data - before > of_made - before)
        counts = 1.0 * ((of_made.detach() >= before) + (of_data.detach() > before))
        pull = ((own - guide).square() * counts).mean()
        self.descend("policy", -2.5 / worth.abs().mean().detach() * worth.mean() + pull)
        for name, weight in self.weights.items():
            if name.startswith("lagged."):
                weight.mul_(0.995).add_(0.005 * self.weights[name.removeprefix("lagged.")].detach())


@pytest.mark.checks("oracle", "a2pr", by="the released update written out in plain torch: all weights after several updates")
def test_updates_are_those_of_the_released_code():
    small = Small(a2pr, lr=LR)
    theirs, first = Released(small.weights()), small.weights()
    for update in range(1, 7):
        rows = drawn_rows(update)

        def noise(name: str, width: int, update: int = update) -> Tensor:
            shape = (24, 1, 1, width) if name == "smoothing" else (24, 1, width)
            return small.noise(update)("normal", name, shape).view(24, width)

        theirs.update(rows, update, noise)
        small.update(rows, update)
    assert_same_weights(small.weights(), {name: weight.detach() for name, weight in theirs.weights.items()}, atol=1e-5)
    moved = {name: (weight - first[name]).abs().max() for name, weight in small.weights().items()}
    assert all(far > 5e-4 for name, far in moved.items() if not name.startswith("lagged"))
    assert 0 < small.metrics["vae_good"] < 1


@pytest.mark.checks("identity", "a2pr")
def test_with_its_guide_off_it_is_td3_bc():
    off = Small(a2pr.with_knobs({"regularize.made_by": "", "regularize.value": ""}))
    parent = Small(td3_bc, like=off)
    for update in (1, 2, 3, 4):
        rows = drawn_rows(update)
        off.update(rows, update)
        parent.update(rows, update)
    assert_same_weights({name: off.weights()[name] for name in parent.weights()}, parent.weights())


def test_an_action_is_followed_once_however_many_reasons_there_are():
    """Where both conditions hold the weight is one, not two; where none does, nothing pulls."""
    small, rows = Small(a2pr), drawn_rows(1)
    for shift, share in ((-100.0, 1.0), (100.0, 0.0)):  # a state worth less than any action, or more
        small.policy.weights()["value.2.bias"].fill_(shift)
        nets = small.nets(rows, scope="policy")
        batch = rows.replace(nets=nets)
        everywhere = a2pr.with_knobs({"regularize.value": ""}).regularize[0](batch)
        torch.testing.assert_close(a2pr.regularize[0](batch), share * everywhere)


def test_a_guide_that_is_held_still_passes_no_gradient():
    small, rows = Small(a2pr), drawn_rows(1)
    still = Small(a2pr.with_knobs({"regularize.detach_guide": True}), like=small)
    (loss, gradient), (same, other) = small.policy_gradient(rows), still.policy_gradient(rows)
    assert torch.equal(loss, same) and not torch.equal(gradient, other)
