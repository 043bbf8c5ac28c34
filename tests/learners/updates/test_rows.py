"""How many updates a pass makes, on rows and on decisions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from part_values import steps

from upslope.learners.updates.decisions import DecisionUpdater
from upslope.learners.updates.rows import RowUpdater
from upslope.methods import find
from upslope.policies.text_inputs import TextInputs
from upslope.runtime.settings import Settings
from upslope.runtime.team import ALONE
from upslope.types import Trajectories


def rows() -> Trajectories:
    """Three groups of four rows; 58 decisions of theirs."""
    batch = steps()[0][0].replace(current=None)
    sampled = (torch.arange(96) < 58).double().reshape(12, 8)
    return batch.replace(sampled=sampled, inputs=TextInputs(batch.action, sampled))


def views(independent: bool) -> SimpleNamespace:
    return SimpleNamespace(policy=SimpleNamespace(independent_decisions=independent), team=ALONE)


@pytest.mark.parametrize(
    ("independent", "updates", "minibatch", "groups"),
    [
        (True, 0, 58, [3]),  # as many updates as minibatches of decisions would fill, rounded up
        (True, 0, 57, [2, 1]),
        (True, 0, 29, [2, 1]),
        (True, 0, 28, [1, 1, 1]),
        (True, 1, 28, [3]),  # unless it is said how many
        (False, 0, 28, [3]),  # a language model's updates are not sized in decisions
        (False, 2, 58, [2, 1]),
    ],
)
def test_updates_on_rows(independent: bool, updates: int, minibatch: int, groups: list[int]):
    made = RowUpdater(find("grpo"), views(independent), None, Settings(updates_per_step=updates, minibatch=minibatch))
    shares = made.shares(rows(), torch.Generator().manual_seed(0))
    assert [share.group_index()[1] for share in shares] == groups


@pytest.mark.parametrize(("updates", "minibatch", "sizes"), [(0, 20, [20, 20, 18]), (2, 20, [29, 29]), (4, 20, [15, 15, 15, 13])])
def test_updates_on_decisions(updates: int, minibatch: int, sizes: list[int]):
    policy = SimpleNamespace(plain=False)
    made = DecisionUpdater(find("ppo"), policy, views(True), None, Settings(updates_per_step=updates, minibatch=minibatch))
    shares = made.shares(rows(), torch.Generator().manual_seed(0))
    assert [share.end - share.begin for share in shares] == sizes
