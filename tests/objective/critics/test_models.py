"""Losses of critics, value functions and temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from stored_values import drawn
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.critics import BootstrapTarget, ExpectileValue, Members, Penalty, QFunction, Temperature
from upslope.types import Batch

sac, iql = find("sac"), find("iql")


@dataclass(frozen=True)
class Two(BootstrapTarget):
    def __call__(self, batch: Batch, over: Members) -> Tensor:
        return torch.full_like(batch.sampled, 2.0)


@dataclass(frozen=True)
class OfValues(Penalty):
    def __call__(self, batch: Batch, values: Tensor) -> Tensor:
        return 3.0 * values.sum(0)


def scoped(method: Any, model: str, kind: str = "continuous") -> Batch:
    batch = drawn(method, 1, kind)
    return batch.replace(nets=batch.nets.on_leaves().scoped(model))


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
@pytest.mark.parametrize("error", ["squared", "huber"])
def test_a_critic_is_fitted_to_reward_and_what_is_behind(kind: str, error: str):
    batch = scoped(sac, "q", kind)
    batch = batch.replace(step_reward=4 * batch.step_reward)
    losses, notes = QFunction(target=Two(), error=error, weight=0.5).loss(batch)
    values = batch.nets.value("q", "now", batch.action.unsqueeze(2)).squeeze(-1)
    target = (batch.step_reward + 2 * batch.signal["discount"]).expand_as(values)
    if error == "squared":
        wanted = 0.5 * (values - target).square().sum(0)
    else:
        wanted = 0.5 * torch.nn.functional.huber_loss(values, target, reduction="none").sum(0)
    torch.testing.assert_close(losses, wanted)
    torch.testing.assert_close(notes["target"], target[0])
    torch.testing.assert_close(notes["td_error"], (values - target).abs().mean(0).detach())


def test_a_penalty_is_added_and_sees_the_members():
    batch = scoped(sac, "q")
    plain, _ = QFunction(target=Two()).loss(batch)
    paid, notes = QFunction(target=Two(), penalty=OfValues()).loss(batch)
    values = batch.nets.value("q", "now", batch.action.unsqueeze(2)).squeeze(-1)
    torch.testing.assert_close(paid - plain, 3 * values.sum(0))
    torch.testing.assert_close(notes["value"], values.mean(0).detach())


@pytest.mark.parametrize("missing", ["step_reward", "action"])
def test_a_critic_without_rewards_or_actions_is_refused(missing: str):
    with pytest.raises(MethodError, match="learns from rewards, actions and discounts"):
        QFunction(target=Two()).loss(scoped(sac, "q").replace(**{missing: None}))


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_temperature_falls_while_the_policy_is_more_random_than_wanted(kind: str):
    batch = scoped(sac, "temperature", kind)
    for wanted, sign in ((-50.0, 1.0), (50.0, -1.0)):
        losses, notes = Temperature(target_entropy=wanted).loss(batch)
        (gradient,) = torch.autograd.grad((losses * batch.sampled).sum(), batch.nets.own_weights())
        assert gradient.sign().item() == sign, "downhill is down where there is entropy to spare"
        torch.testing.assert_close(notes["temperature"], torch.ones_like(batch.sampled))
    auto, _ = Temperature().loss(batch)
    size = batch.nets.action_size
    usual = -float(size) if kind == "continuous" else 0.98 * float(torch.tensor(float(size)).log())
    torch.testing.assert_close(auto, Temperature(target_entropy=usual).loss(batch)[0])


def test_an_expectile_weighs_what_lies_above_more():
    batch = scoped(iql, "value")
    judged = batch.nets.value("q", "now", batch.action.unsqueeze(2), lagged=True).amin(0).squeeze(-1)
    gap = judged - batch.nets.value("value", "now")[0, ..., 0]
    for expectile in (0.5, 0.9):
        wanted = torch.where(gap < 0, 1 - expectile, expectile) * gap.square()
        torch.testing.assert_close(ExpectileValue(expectile=expectile).loss(batch)[0], wanted)
    assert not any(key != "value" for key in ExpectileValue().loss(batch)[1])
