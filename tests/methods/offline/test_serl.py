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


VICE = {"adversarial": True, "label_smoothing": 0.2, "mixup": True, "gradient_penalty": 10.0}
"""As the suite released it."""


def released_vice(weights: dict[str, Tensor], states: Tensor, done: Tensor, order: Tensor, share: float, between: Tensor) -> Tensor:
    """The suite's loss of its classifier, on states whose first half are goals: mixed labels, and slopes between the halves."""

    def logit(state: Tensor) -> Tensor:
        for layer in range(3):
            state = state @ weights[f"success.{layer}.weight"][0] + weights[f"success.{layer}.bias"][0, 0]
            state = state.relu() if layer < 2 else state
        return state.squeeze(-1)

    label = done * (1 - 0.2) + 0.5 * 0.2
    mixed = share * states + (1 - share) * states[order]
    entropy = torch.nn.functional.binary_cross_entropy_with_logits
    loss = share * entropy(logit(mixed), label) + (1 - share) * entropy(logit(mixed), label[order])
    half = len(states) // 2
    slopes = []
    for row in range(len(states)):  # each state and its opposite one, seen from both
        point = between[row] * mixed[row] + (1 - between[row]) * mixed[(row + half) % len(states)]
        slopes.append(torch.autograd.grad(logit(point.requires_grad_()), point, create_graph=True)[0])
    norms = torch.stack([(slope**2 + 1e-6).sum().sqrt() for slope in slopes])
    return loss + 10 * (norms - 1).square().mean()


def test_vice_descends_the_released_loss():
    vice = LEARNED | {f"models.success.{knob}": value for knob, value in VICE.items()}
    small = Small(serl.with_knobs(vice), lr=LR)
    weights = {name: weight.requires_grad_() for name, weight in small.weights().items() if name.startswith("success.")}
    first = {name: weight.detach().clone() for name, weight in weights.items()}
    adam = torch.optim.Adam(weights.values(), lr=LR, eps=EPS)
    rows, half = 24, 12
    done = (torch.arange(rows) < half).float()
    for update in range(1, 6):
        found = drawn_rows(update, rows)
        found = found.replace(step_reward=done.unsqueeze(1), label={"source": torch.where(done > 0, *map(torch.tensor, (
            int(Source.DEMONSTRATED), int(Source.REPLAYED))))})  # fmt: skip
        draw = small.noise(update)
        order = draw("uniform", "mixup/order", (rows, 1))[:, 0].argsort()
        between, share = draw("uniform", "penalty/share", (rows, 1))[:, 0], float(draw("uniform", "mixup/share", (1,)))
        adam.zero_grad()
        released_vice(weights, found.inputs.following[:, 0], done, order, share, between).backward()
        adam.step()
        small.update(found, update)
    ours = {name: weight for name, weight in small.weights().items() if name.startswith("success.")}
    assert_same_weights(ours, {name: weight.detach() for name, weight in weights.items()}, atol=1e-5)
    assert all((ours[name] - first[name]).abs().max() > 5e-4 for name in ours if name != "success.2.bias")


@pytest.mark.parametrize("knob", [{"label_smoothing": 0.2}, {"mixup": True}, {"gradient_penalty": 10.0}])
def test_each_of_vices_knobs_changes_the_classifier_and_nothing_else(knob: dict):
    plain = Small(serl.with_knobs(LEARNED))
    other = Small(serl.with_knobs(LEARNED | {f"models.success.{name}": value for name, value in knob.items()}), like=plain)
    rows = demonstrated(7, own=16)
    plain.update(rows, 1)
    other.update(rows, 1)
    moved = {name for name, weight in plain.weights().items() if not torch.equal(weight, other.weights()[name])}
    assert moved and all(name.startswith("success.") for name in moved)


def classified(small: Small, rows: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses and notes of the classifier."""
    model, batch = dict(small.method.learned)["success"], rows.replace(nets=small.nets(rows, scope="success"))
    return model.loss(batch.replace(prepared={model: model.prepare(batch)}))


def test_only_known_states_are_mixed_and_slopes_need_both_kinds():
    """Of one kind there is nothing in between, and the run's own states, of which nobody knows, are no part of any mixture."""
    small = Small(serl.with_knobs(LEARNED | {"models.success.mixup": True, "models.success.gradient_penalty": 10.0}))
    rows = demonstrated(2, rows=20, own=8)
    inputs = rows.inputs
    far = inputs.following.clone()
    far[12:] = 1e6
    shifted = rows.replace(inputs=type(inputs)(inputs.observation, far))
    losses = classified(small, rows)[0]
    torch.testing.assert_close(losses, classified(small, shifted)[0])
    assert (losses[:12] > 0).all() and torch.equal(losses[12:], torch.zeros(8, 1))
    one_kind = rows.replace(step_reward=torch.zeros(20, 1))
    plain = Small(serl.with_knobs(LEARNED | {"models.success.mixup": True}), like=small)
    torch.testing.assert_close(classified(small, one_kind)[0], classified(plain, one_kind)[0])


def test_accuracy_is_that_of_labels_and_agreement_that_of_the_runs_own_states():
    """By hand: a classifier that says yes everywhere is right in all done states and in none of the others."""
    small = Small(serl.with_knobs(LEARNED))
    for name, weight in small.policy.weights().items():
        if name.startswith("success.2"):
            weight.fill_(1.0 if name.endswith("bias") else 0.0)
    rows = demonstrated(4, rows=40, own=16)
    notes = classified(small, rows)[1]
    assert notes["accuracy"].mean().item() == pytest.approx(0.5)
    assert notes["agreement"].mean().item() == 0.0  # the environment has paid nothing, and it says yes
    paid = rows.step_reward.clone()
    paid[24:26] = 1.0
    assert classified(small, rows.replace(step_reward=paid))[1]["agreement"].mean().item() == pytest.approx(0.5)
    shown = rows.replace(label={"source": torch.full((40,), int(Source.DEMONSTRATED))})
    assert classified(small, shown)[1]["agreement"].mean().item() == 0.0
