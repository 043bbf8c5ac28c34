"""Two networks for two tasks: each learns from the decisions of its own, and the first alone is the network there would be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stored_rows import SMALL, SPACE, Small, drawn_rows
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import find
from upslope.policies.control.bound_networks import ExperienceInputs
from upslope.types import ActionSpace, Trajectories

PAIR = {"policy.pair": True, "models.q.network.pair": True, "models.temperature.pair": True}
METHOD = find("serl").with_knobs(SMALL | {"policy.every": 2, "models.temperature.every": 2})
WIDER = ActionSpace((SPACE.observation[0] + 1,), SPACE.actions, False)


def with_task(rows: Trajectories, task: Tensor) -> Trajectories:
    """The rows with the number of their task behind their states."""
    column = task.float().view(-1, 1, 1)
    states = (torch.cat([each, column], -1) for each in (rows.inputs.observation, rows.inputs.following))
    return rows.replace(inputs=ExperienceInputs(*states))


def weights_of(small: Small, which: str) -> dict[str, Tensor]:
    """Of the first or second of each network, called as if there were one."""
    found = {name.replace(f".{which}.stack.", "."): weight for name, weight in small.weights().items() if f".{which}." in name}
    assert found
    return found


@pytest.mark.parametrize("which", ["first", "second"])
def test_where_one_task_is_always_done_the_pair_is_one_agent_bit_for_bit(which: str):
    pair = Small(METHOD.with_knobs(PAIR), space=WIDER)
    idle = weights_of(pair, {"first": "second", "second": "first"}[which])
    alone = Small(METHOD)
    if which == "first":
        assert all(torch.equal(weight, alone.weights()[name]) for name, weight in weights_of(pair, "first").items())
    else:
        alone.policy.load_weights(weights_of(pair, "second"))
    for update in range(1, 5):
        rows = drawn_rows(update)
        alone.update(rows, update)
        pair.update(with_task(rows, torch.full((24,), float(which == "second"))), update)
    assert alone.weights().keys() == weights_of(pair, which).keys()
    for name, weight in weights_of(pair, which).items():
        assert torch.equal(weight, alone.weights()[name]), name
    after = weights_of(pair, {"first": "second", "second": "first"}[which])
    assert all(torch.equal(weight, after[name]) for name, weight in idle.items()), "nothing has happened in its task"
    assert pair.metrics["q_value"] == alone.metrics["q_value"]


def test_decisions_of_one_task_reach_its_networks_alone():
    """Exact: what the other task's decisions saw, did and were paid leaves the gradient as it is, to the last bit."""
    small, task = Small(METHOD.with_knobs(PAIR), space=WIDER), torch.arange(24) % 3 == 0
    rows, others = drawn_rows(1), drawn_rows(2)

    def mixed(column: Tensor, other: Tensor) -> Tensor:
        return torch.where(task.view(-1, *[1] * (column.dim() - 1)), other, column)

    changed = rows.replace(
        action=mixed(rows.action, others.action), step_reward=mixed(rows.step_reward, others.step_reward),
        inputs=ExperienceInputs(
            mixed(rows.inputs.observation, others.inputs.observation), mixed(rows.inputs.following, others.inputs.following)
        ),
    )  # fmt: skip
    for network in ("policy", "q"):

        def gradient(given: Trajectories, network: str = network) -> tuple[Tensor, Tensor]:
            found = small.policy_gradient(given)[1] if network == "policy" else small.model_gradient("q", given)[1]
            return found.chunk(2)

        (first, second), (same, other) = gradient(with_task(rows, task)), gradient(with_task(changed, task))
        assert torch.equal(first, same) and not torch.equal(second, other)
        assert first.abs().max() > 0 and second.abs().max() > 0
        none = gradient(with_task(rows, torch.zeros(24)))[1]
        assert torch.equal(none, torch.zeros_like(none))


def test_each_task_has_a_temperature_of_its_own():
    small = Small(METHOD.with_knobs(PAIR | {"models.temperature.every": 1, "policy.every": 1}), space=WIDER)
    rows = with_task(drawn_rows(1), torch.arange(24) % 2)
    with torch.no_grad():
        small.policy.networks["temperature"].second.stack.flat.fill_(np.log(0.5))
    said = small.nets(rows).value("temperature", "now")[0, :, 0, 0]
    torch.testing.assert_close(said, torch.where(torch.arange(24) % 2 == 1, 0.5, 0.01))
    before = small.weights()
    small.update(with_task(drawn_rows(1), torch.ones(24)), 1)
    assert torch.equal(small.weights()["temperature.first.stack.log"], before["temperature.first.stack.log"])
    assert not torch.equal(small.weights()["temperature.second.stack.log"], before["temperature.second.stack.log"])


def test_a_pair_wants_numbers_of_which_the_last_is_the_task():
    with pytest.raises(MethodError, match=r"pair=True wants observations of numbers .* shape \(1,\)\. Make .* up\.reset_free\."):
        Small(METHOD.with_knobs(PAIR), space=ActionSpace((1,), 2, False))
