"""TD3+BC: d3rlpy's updates, and behaviour cloning where values do not count."""

from __future__ import annotations

import pytest
import torch
from beside_d3rlpy import TheirNoise, compare, made
from d3rlpy.algos import TD3PlusBCConfig
from stored_rows import SMALL, Small, assert_same_weights, drawn_rows

from upslope.methods import find

td3_bc, bc = find("td3-bc").with_knobs(SMALL), find("bc").with_knobs({"policy.hidden": SMALL["policy.hidden"]})


@pytest.mark.checks("oracle", "td3-bc", by="d3rlpy's TD3PlusBC: all weights after several updates")
def test_updates_are_those_of_d3rlpy(monkeypatch: pytest.MonkeyPatch):
    small = Small(td3_bc)
    compare(small, made(TD3PlusBCConfig), before=TheirNoise(monkeypatch).follows(small, "smoothing"))


@pytest.mark.checks("identity", "td3-bc")
def test_without_values_it_is_behaviour_cloning():
    still, cloning = Small(td3_bc.with_knobs({"surrogate.scale": 0.0})), Small(bc)
    cloning.take(still.policy.weights())
    for update in range(1, 4):
        rows = drawn_rows(update)
        (loss, gradient), (other, others) = still.policy_gradient(rows, update), cloning.policy_gradient(rows, update)
        assert torch.equal(loss, other) and torch.equal(gradient, others) and gradient.abs().max() > 0
        still.update(rows, 2 * update)  # the policy moves at every second update
        cloning.update(rows, update)
    assert_same_weights({name: still.weights()[name] for name in cloning.weights()}, cloning.weights())
