"""A policy of torch networks: what it keeps, how its copies follow, what it does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from upslope.errors import UserError
from upslope.methods import find
from upslope.policies.control.network_policy import ActionBox, NetworkPolicy
from upslope.tasks import load_task
from upslope.testing.table_nets import small
from upslope.types import Method


def made(name: str, task: str = "gym:Pendulum-v1", seed: int = 0) -> tuple[Method, NetworkPolicy]:
    method = small(find(name))
    policy = method.policy.build(load_task(task), seed)
    for model, part in method.learned:
        policy.add_model(model, part, seed)
    return method, policy


def test_actions_go_to_the_environments_units_and_back():
    box = ActionBox.of(SimpleNamespace(low=np.array([-2.0, 0.0, -np.inf]), high=np.array([6.0, 1.0, 3.0])))
    unit = np.array([[-1.0, -1.0, -0.3], [1.0, 1.0, 0.8], [0.5, 0.0, 0.0]], np.float32)
    taken = box.from_unit(unit)
    assert taken[:, 0].tolist() == [-2.0, 6.0, 4.0] and taken[:, 1].tolist() == [0.0, 1.0, 0.5]
    np.testing.assert_allclose(taken[:, 2], unit[:, 2], atol=1e-6, err_msg="a side without an end is left as it is")
    np.testing.assert_allclose(box.to_unit(taken), unit, atol=1e-6)


def test_copies_follow_when_they_are_due():
    _, policy = made("td3")
    q, lagged = policy.networks["q"].stack.flat, policy.lagged["q"].stack.flat
    with torch.no_grad():
        q.add_(1.0)
    before = lagged.clone()
    policy.follow(1)
    assert torch.equal(lagged, before), "td3's copies move at every second update"
    policy.follow(2)
    torch.testing.assert_close(lagged, before + 0.005 * (q - before))
    assert not any(parameter.requires_grad for parameter in policy.lagged.parameters())


def test_weights_come_back_from_files_with_the_copies(tmp_path: Path):
    _, one = made("sac")
    _, other = made("sac", seed=1)
    with torch.no_grad():
        one.lagged["q"].stack.flat.add_(0.5)
    one.save(tmp_path)
    other.load(tmp_path)
    assert one.weights().keys() == other.weights().keys() and any(name.startswith("lagged.q") for name in one.weights())
    assert all(torch.equal(weight, other.weights()[name]) for name, weight in one.weights().items())
    seen = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    assert np.array_equal(one.acting().output(seen), other.acting().output(seen))


def test_weights_of_another_network_are_refused(tmp_path: Path):
    made("sac")[1].save(tmp_path)
    with pytest.raises(UserError, match="of another network"):
        made("td3")[1].load(tmp_path)


def test_a_frozen_copy_stays_and_acting_sees_every_update():
    _, policy = made("td3")
    kept, actor = policy.frozen_copy(), policy.acting()
    seen = np.ones((1, 3), np.float32)
    before = actor.output(seen).copy()
    with torch.no_grad():
        policy.actor.stack.flat.add_(0.1)
    assert not np.array_equal(actor.output(seen), before) and np.array_equal(kept.acting().output(seen), before)
    assert not any(parameter.requires_grad for parameter in kept.parameters())


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_actions_are_in_the_environments_box(name: str):
    actor = made(name)[1].acting()
    seen = 10 * np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    noise = np.random.default_rng(1).standard_normal((50, 1)).astype(np.float32)
    unit = actor.unit(actor.output(seen), noise)
    taken = actor.choose(actor.output(seen), noise)
    assert np.abs(unit).max() <= 1 and np.abs(taken).max() <= 2.0
    np.testing.assert_allclose(taken, 2 * unit, rtol=1e-5, atol=1e-6)


def test_without_an_actor_the_best_choice_of_all_members_is_taken():
    method = small(find("dqn")).with_knobs({"models.q.network.members": 3})
    policy = method.policy.build(load_task("gym:CartPole-v1"), 0)
    policy.add_model("q", dict(method.learned)["q"], 0)
    actor, seen = policy.acting(), np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    with torch.no_grad():
        values = policy.networks["q"].stack(torch.from_numpy(seen)).mean(0)
    assert actor.unit(actor.output(seen), np.zeros(20)).tolist() == values.argmax(-1).tolist()
