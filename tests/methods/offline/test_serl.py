"""SERL: RLPD with other settings, and the released losses written out in plain torch."""

from __future__ import annotations

import pytest
import torch
from stored_rows import EPS, SMALL, SPACE, Small, assert_same_weights, drawn_rows
from torch import Tensor

from upslope.methods import find
from upslope.types import Source, Trajectories

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


LEARNED = {"models.success": "SuccessClassifier(network=MLPEnsemble(members=1, hidden=(16, 16)))", "reward": "LearnedSuccess()"}


def demonstrated(seed: int, rows: int = 64, own: int = 0) -> Trajectories:
    """Demonstrations that are done where the first number of the state reached is positive; the last rows are the run's own."""
    found = drawn_rows(seed, rows)
    done = (found.inputs.following[..., 0] > 0).float()
    source = torch.full((rows,), int(Source.DEMONSTRATED))
    source[rows - own :] = int(Source.REPLAYED)
    return found.replace(step_reward=torch.where(source.unsqueeze(1) == Source.DEMONSTRATED, done, 0.0), label={"source": source})


def test_a_classifier_learns_when_the_task_is_done_and_pays_for_it():
    small = Small(serl.with_knobs(LEARNED), lr=1e-2)
    for update in range(1, 121):
        small.update(demonstrated(update, own=16), update)
    fresh = demonstrated(1000)
    said = small.nets(fresh).value("success", "next")[0, ..., 0] > 0
    assert (said == (fresh.step_reward > 0)).float().mean() >= 0.95
    assert small.metrics["success_accuracy"] >= 0.9
    rows = demonstrated(1001, own=64)  # of its own rows nobody says whether they are done: the environment pays nothing
    paid = small.method.reward[0](rows.replace(nets=small.nets(rows)))
    done = rows.inputs.following[..., 0] > 0
    assert (paid.step_reward == done.float()).float().mean() >= 0.95 and rows.step_reward.sum() == 0
    assert torch.equal(paid.signal["discount"], rows.signal["discount"] * (1 - paid.step_reward))


def test_critics_are_fitted_to_the_learned_reward():
    learned = Small(serl.with_knobs(LEARNED | {"models.success.lr_scale": 0.0}))
    learned.policy.weights()["success.2.bias"].fill_(0.0)
    learned.policy.weights()["success.2.weight"].copy_(torch.linspace(-1, 1, 16).view(1, 16, 1))
    plain = Small(serl, like=learned)
    rows = demonstrated(5, own=32)
    paid = learned.method.reward[0](rows.replace(nets=learned.nets(rows)))
    assert 0 < paid.step_reward.mean() < 1 and not torch.equal(paid.step_reward, rows.step_reward)
    learned.update(rows, 1)
    plain.update(rows.replace(step_reward=paid.step_reward, signal={**rows.signal, "discount": paid.signal["discount"]}), 1)
    assert_same_weights({name: learned.weights()[name] for name in plain.weights()}, plain.weights())


@pytest.mark.parametrize("adversarial", [False, True])
def test_both_kinds_count_the_same_and_the_runs_own_states_only_where_asked(adversarial: bool):
    """By hand: a logit of zero everywhere costs log 2 on either side, whatever the counts; the gradient in a logit x is then
    -1/2 over the number of done states, and 1/2 over that of the others."""
    knobs = {"models.success.adversarial": True} if adversarial else {}
    small = Small(serl.with_knobs(LEARNED | knobs))
    for name, weight in small.policy.weights().items():
        if name.startswith("success.2"):
            weight.zero_()
    rows = demonstrated(3, rows=40, own=10)
    model, nets = dict(small.method.learned)["success"], small.nets(rows, scope="success")
    batch = rows.replace(nets=nets)
    batch = batch.replace(prepared={model: model.prepare(batch)})
    losses, _ = model.loss(batch)
    assert losses.mean().item() == pytest.approx(0.6931472)
    done = int(rows.step_reward.sum())
    others = 40 - done if adversarial else 30 - done
    wanted = torch.where(rows.step_reward[:, 0] > 0, 0.5 / done, 0.5 / others)
    wanted[30:] = 0.5 / others if adversarial else 0.0
    torch.testing.assert_close(losses[:, 0].detach() / 40 / 0.6931472, wanted)
