"""IQL: d3rlpy's updates, likelihood cloning, no question outside the data, and what the expectile is on a table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from beside_d3rlpy import compare, free_spread, made
from d3rlpy.algos import IQLConfig
from stored_rows import SMALL, Small, assert_same_weights, drawn_rows
from torch import Tensor

from upslope.methods import find
from upslope.objective.critics import ExpectileValue
from upslope.policies.control.bound_networks import BoundNetworks

iql = find("iql").with_knobs(SMALL | {"models.value.network.hidden": SMALL["policy.hidden"]})
bc = find("bc")


@pytest.mark.checks("oracle", "iql", by="d3rlpy's IQL: all weights after several updates, its spread as the paper has it")
def test_updates_are_those_of_d3rlpy(monkeypatch: pytest.MonkeyPatch):
    """They sum the critics' errors where the released code halves the sum, so our factor is theirs here."""
    free_spread(monkeypatch)
    compare(Small(iql.with_knobs({"models.q.weight": 1.0})), made(IQLConfig))


@pytest.mark.checks("identity", "iql")
def test_at_beta_zero_it_is_cloning_by_likelihood():
    plain = Small(iql.with_knobs({"surrogate.beta": 0.0}))
    cloning = Small(bc.derive(policy=iql.policy).with_knobs({"surrogate.likelihood": True}))
    cloning.take(plain.policy.weights())
    for update in range(1, 4):
        rows = drawn_rows(update)
        (loss, gradient), (other, others) = plain.policy_gradient(rows, update), cloning.policy_gradient(rows, update)
        assert torch.equal(loss, other) and torch.equal(gradient, others) and gradient.abs().max() > 0
        plain.update(rows, update)
        cloning.update(rows, update)
    assert_same_weights({name: plain.weights()[name] for name in cloning.weights()}, cloning.weights())


class Watched(BoundNetworks):
    """Writes down which actions are asked for, and which are drawn."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.asked: list[Tensor] = []
        self.drawn: list[str] = []

    def scoped(self, network: str) -> Watched:
        found = Watched(self.policy, self.inputs, self.noise, self.references, network, self._answers)
        found.asked, found.drawn = self.asked, self.drawn
        return found

    def value(self, model: str, at: Any, action: Tensor | None = None, lagged: bool = False, members: int = 0) -> Tensor:
        if model == "q":
            assert action is not None and at == "now"
            self.asked.append(action)
        return super().value(model, at, action, lagged, members)

    def actions(self, at: Any, whose: str = "policy", *rest: Any, **named: Any) -> Any:
        self.drawn.append(whose)
        return super().actions(at, whose, *rest, **named)


def test_no_value_is_asked_at_an_action_outside_the_data():
    small, rows = Small(iql), drawn_rows(3)
    nets = Watched(small.policy, rows.inputs, small.noise(1))
    small.update(rows, 1, nets)
    assert len(nets.asked) == 3  # the critic's error, the expectile's target, the advantage
    assert all(torch.equal(action, rows.action.unsqueeze(2)) for action in nets.asked)
    assert not nets.drawn
    other = Small(find("awac").with_knobs(SMALL))
    nets = Watched(other.policy, rows.inputs, other.noise(1))
    with pytest.raises(AssertionError):  # awac asks what the policy would do next: the watch can tell
        other.update(rows, 1, nets)


@pytest.mark.parametrize(("expectile", "wanted"), [(0.5, 1.5), (0.7, 3.4 / 1.6), (0.999, 3.998 / 1.002)])
def test_the_expectile_of_recorded_values(expectile: float, wanted: float):
    """One state, four recorded actions worth 0, 0, 2 and 4: a half gives their mean, nearer to one their best.

    By hand, where v is between 2 and 4: tau (4 - v) = (1 - tau) (v - 2 + 2 v), so 0.7 gives 1.6 v = 3.4.
    """
    worth = torch.tensor([0.0, 0.0, 2.0, 4.0])
    value = ExpectileValue(expectile=expectile)

    class Table:
        scope = "value"
        guess = torch.zeros(1, requires_grad=True)

        def value(self, model: str, at: str, action: Tensor | None = None, lagged: bool = False) -> Tensor:
            return worth.view(1, 4, 1, 1) if model == "q" else self.guess.expand(1, 4, 1, 1)

    nets, rows = Table(), drawn_rows(0, rows=4)
    optimizer = torch.optim.LBFGS([nets.guess], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = value.loss(rows.replace(nets=nets))[0].mean()
        loss.backward()
        return loss

    for _ in range(10):
        optimizer.step(closure)
    assert float(nets.guess.detach()) == pytest.approx(wanted, abs=1e-4)
