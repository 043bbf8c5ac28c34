"""FamO2O: IQL where the interval is a point, its losses written out in plain torch, and the family acting."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from stored_rows import EPS, HIDDEN, SMALL, SPACE, Small, assert_same_weights, drawn_rows, pendulum_log
from torch import Tensor

import upslope as up
from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.networks.balance import sinusoids
from upslope.types import Trajectories

SIZES = {f"models.{name}.network.hidden": HIDDEN for name in ("balance", "value")}
famo2o = find("famo2o").with_knobs(SMALL | SIZES)
iql = find("iql").with_knobs(SMALL | {"models.value.network.hidden": HIDDEN, "models.value.expectile": 0.8})
POINT = {"models.balance.network.low": 3.0, "models.balance.network.high": 3.0}
LR = 1e-3


def online(rows: Trajectories) -> Trajectories:
    return rows.replace(signal={**rows.signal, "online": torch.ones_like(rows.sampled)})


@pytest.mark.checks("identity", "famo2o")
def test_where_the_interval_is_a_point_it_is_iql():
    family = famo2o.with_knobs(POINT)
    parent = family.derive(surrogate=iql.surrogate)
    ours, theirs = Small(family), Small(parent)
    for update in (1, 2, 3, 4):
        rows = drawn_rows(update) if update < 3 else online(drawn_rows(update))
        ours.update(rows, update)
        theirs.update(rows, update)
    assert_same_weights(ours.weights(), theirs.weights())


@pytest.mark.checks("identity", "famo2o")
def test_a_family_that_does_not_read_its_coefficient_has_the_loss_and_gradient_of_iql():
    """iql's own network is ours with zeros where the coefficient comes in."""
    family, plain = Small(famo2o.with_knobs(POINT)), Small(iql)
    own, size = plain.weights(), SPACE.observation[0]
    wide = {name: weight for name, weight in own.items() if name != "policy.0.weight"}
    family.take(wide)
    first = family.policy.weights()["policy.0.weight"]
    first.zero_()
    first[:, :size].copy_(own["policy.0.weight"])
    rows = drawn_rows(3)
    (loss, gradient), (other, others) = family.policy_gradient(rows), plain.policy_gradient(rows)
    torch.testing.assert_close(loss, other, rtol=1e-6, atol=1e-7)
    kept, width = size * HIDDEN[0], (size + 6) * HIDDEN[0]
    shared = torch.cat([gradient[:kept], gradient[width:]])
    torch.testing.assert_close(shared, others, rtol=1e-5, atol=1e-7)
    assert others.abs().max() > 0.01


def layers(weights: dict[str, Tensor], network: str, inputs: Tensor, member: int = 0) -> Tensor:
    for layer in range(3):
        inputs = inputs @ weights[f"{network}.{layer}.weight"][member] + weights[f"{network}.{layer}.bias"][member]
        inputs = inputs.relu() if layer < 2 else inputs
    return inputs


def embedded(beta: Tensor) -> Tensor:
    """As the released code has it: sines at even places, cosines at odd ones, of beta / n^(2 i / d)."""
    found = torch.empty(len(beta), 6)
    angle = beta / 10000.0 ** (2 * torch.arange(3) / 6)
    found[:, 0::2], found[:, 1::2] = angle.sin(), angle.cos()
    return found


class Released:
    """The losses of the released code in plain torch; the balance is fitted behind the policy."""

    def __init__(self, weights: dict[str, Tensor]):
        self.weights = {name: weight.clone().requires_grad_(not name.startswith("lagged")) for name, weight in weights.items()}
        networks = ("q", "value", "policy", "balance", "balance_temperature")
        self.optimizers = {
            network: torch.optim.Adam([w for name, w in self.weights.items() if name.startswith(f"{network}.")], lr=LR, eps=EPS)
            for network in networks
        }

    def descend(self, network: str, loss: Tensor) -> None:
        for each in self.optimizers.values():
            each.zero_grad()
        loss.backward()
        self.optimizers[network].step()

    def lowest(self, state: Tensor, action: Tensor) -> Tensor:
        return torch.min(*(layers(self.weights, "lagged.q", torch.cat([state, action], 1), member) for member in (0, 1)))

    def policy(self, state: Tensor, beta: Tensor) -> torch.distributions.Normal:
        mean = layers(self.weights, "policy", torch.cat([state, embedded(beta)], 1)).tanh()
        return torch.distributions.Normal(mean, self.weights["policy.shared.log_std"].clamp(-20, 2).exp())

    def choice(self, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A coefficient between 1 and 5 and the log-density of the tanh it is made of."""
        spread = torch.distributions.Normal(layers(self.weights, "balance", state), self.weights["balance.shared.log_std"].exp())
        raw = spread.loc + spread.scale * noise
        logp = spread.log_prob(raw) - torch.log(1 - raw.tanh().square())
        return (raw.tanh() + 1) / 2 * (5 - 1) + 1, logp

    def update(self, rows: Trajectories, noise: dict[str, Tensor], acts: bool) -> None:
        state, action, following = rows.inputs.observation[:, 0], rows.action[:, 0], rows.inputs.following[:, 0]
        with torch.no_grad():
            target = rows.step_reward + rows.signal["discount"] * layers(self.weights, "value", following)
        pair = torch.cat([state, action], 1)
        self.descend("q", 0.5 * sum((layers(self.weights, "q", pair, member) - target).square().mean() for member in (0, 1)))
        with torch.no_grad():
            judged = self.lowest(state, action)
        gap = judged - layers(self.weights, "value", state)
        self.descend("value", (torch.where(gap > 0, 0.8, 0.2) * gap.square()).mean())
        with torch.no_grad():
            advantage = judged - layers(self.weights, "value", state)
            beta = self.choice(state, noise["chosen"])[0] if acts else 1 + 4 * noise["uniform"]
            weight = torch.exp(advantage * beta).clamp(max=100.0)
        self.descend("policy", -(weight * self.policy(state, beta).log_prob(action).sum(1, keepdim=True)).mean())
        beta, logp = self.choice(state, noise["balance"])
        family = self.policy(state, beta)
        value = self.lowest(state, (family.loc + family.scale.detach() * noise["action"]).clamp(-1, 1))
        temperature = self.weights["balance_temperature.log"].exp()
        self.descend("balance", (temperature.detach() * logp - value).mean())
        with torch.no_grad():
            entropy = -self.choice(state, noise["balance"])[1].mean()
        self.descend("balance_temperature", (self.weights["balance_temperature.log"].exp() * (entropy - (-0.5))).sum())
        for name, weight in self.weights.items():
            if name.startswith("lagged."):
                weight.mul_(0.995).add_(0.005 * self.weights[name.removeprefix("lagged.")].detach())


@pytest.mark.checks("oracle", "famo2o", by="the released losses written out in plain torch: all weights after several updates")
def test_updates_are_those_of_the_released_losses():
    small = Small(famo2o, lr=LR)
    theirs, first = Released(small.weights()), small.weights()
    for update in range(1, 7):
        acts = update > 3
        rows, draw = online(drawn_rows(update)) if acts else drawn_rows(update), small.noise(update)
        noise = dict(chosen=draw("normal", "family", (24, 1)), uniform=draw("uniform", "family", (24, 1)),
                     balance=draw("normal", "balance", (24, 1)),
                     action=draw("normal", "now/policy/1", (24, 1, 1, SPACE.actions)).view(24, -1))  # fmt: skip
        theirs.update(rows, noise, acts)
        small.update(rows, update)
        low, high = (1.0, 5.0)
        assert low <= small.metrics["coefficient"] <= high
    assert_same_weights(small.weights(), {name: weight.detach() for name, weight in theirs.weights.items()}, atol=1e-5)
    moved = {name: (weight - first[name]).abs().max() for name, weight in small.weights().items()}
    assert all(far > 5e-4 for name, far in moved.items() if not name.startswith("lagged"))


def test_how_a_coefficient_is_read():
    found = sinusoids(torch.tensor([[2.0]]))
    slow = [2.0, 2.0 / 10000 ** (1 / 3), 2.0 / 10000 ** (2 / 3)]
    torch.testing.assert_close(found, torch.tensor([[[wave(x) for x in slow for wave in (math.sin, math.cos)]]]))


def test_it_acts_with_the_coefficient_that_the_balance_is_certain_of():
    small, rows = Small(famo2o), drawn_rows(1)
    seen = rows.inputs.observation
    beta = small.policy.networks["balance"].certain(seen, True)
    assert 1 < beta.min() < beta.max() < 5
    wanted, _ = small.policy.actor.parameters_at(torch.cat([seen, beta.unsqueeze(-1)], -1), True)
    for plain in (False, True):
        small.policy.plain = plain
        actor = small.policy.acting()
        found = actor.choose(actor.output(seen[:, 0].numpy()), np.empty(0), True)
        np.testing.assert_allclose(found, wanted[:, 0].numpy(), atol=1e-6)
    asked = small.nets(rows).logp("now", rows.action.unsqueeze(2))
    given = small.nets(rows).logp("now", rows.action.unsqueeze(2), given={"balance": beta})
    assert torch.equal(asked, given) and torch.equal(small.policy.evaluate(rows).logp, asked.squeeze(2))


def test_from_data_to_acting_and_predicting(tmp_path: Path):
    run = up.train("famo2o", "gym:Pendulum-v1", data=pendulum_log(), steps=3, offline_steps=2, horizon=20, updates_per_step=4,
                   minibatch=16, eval_every=0, eval_problems=1, knobs=SMALL | SIZES, out=tmp_path / "run")  # fmt: skip
    assert run.metrics[1]["samples"] == 0 and run.metrics[2]["samples"] == 20
    assert all(1 <= line["coefficient"] <= 5 and np.isfinite(line["balance_loss"]) for line in run.metrics)
    action, _ = up.load(tmp_path / "run").predict(np.zeros(3, np.float32), deterministic=True)
    assert action.shape == (1,) and abs(float(action[0])) <= 2


def test_an_interval_upside_down_and_a_missing_balance_are_refused(tmp_path: Path):
    with pytest.raises(MethodError, match=r"low=6 above high=5"):
        famo2o.with_knobs({"models.balance.network.low": 6.0})
    with pytest.raises(MethodError, match="no model of that name"):
        up.train(famo2o.with_knobs({"policy.by": "nobody"}), "gym:Pendulum-v1", data=pendulum_log(), out=tmp_path / "run")
