"""PRDC: d3rlpy's updates, TD3+BC where states alone count, and a tree that is there again when a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from beside_d3rlpy import TheirNoise, compare, made
from d3rlpy.algos import PRDCConfig
from stored_rows import SMALL, SPACE, Small, assert_same_weights, drawn_rows, pendulum_log

import upslope as up
from upslope.errors import MethodError, UserError
from upslope.experience.search_tree import SearchTree
from upslope.methods import find
from upslope.objective.models.neighbours import NearestNeighbour, pairs
from upslope.packed import Piece, packing
from upslope.testing.runs import Breaks, Crash, assert_same_run
from upslope.types import ActionSpace, World

prdc, td3_bc = find("prdc").with_knobs(SMALL), find("td3-bc").with_knobs(SMALL)
NEAR = 0.1
"""Of the states in these rows, which lie far apart, a beta at which actions of others are nearest."""


def world(*seeds: int) -> World:
    """The rows of these seeds as a dataset."""
    rows = [drawn_rows(seed) for seed in seeds]
    states, actions = [each.inputs.observation[:, 0] for each in rows], [each.action[:, 0] for each in rows]
    return World(torch.cat(states), torch.cat(actions), SearchTree)


def solved(small: Small, recorded: World) -> Small:
    for name, model in small.method.solved:
        model.solve(small.policy.networks[name], recorded)
    return small


@pytest.mark.checks("oracle", "prdc", by="d3rlpy's PRDC: all weights after several updates")
def test_updates_are_those_of_d3rlpy(monkeypatch: pytest.MonkeyPatch):
    recorded = world(101, 102, 103, 104)
    small = solved(Small(prdc.with_knobs({"models.neighbours.beta": NEAR})), recorded)
    algo = made(PRDCConfig, beta=NEAR)
    algo.impl._nbsr.fit(pairs(recorded.observation, recorded.action, NEAR).numpy())
    rows = drawn_rows(102)
    found = small.nets(rows).column("neighbours", "nearest", action=small.nets(rows).actions("now").action.squeeze(2))
    assert not torch.equal(found, rows.action)  # else this were td3-bc
    compare(small, algo, before=TheirNoise(monkeypatch).follows(small, "smoothing"))


def test_nearest_is_that_of_all_distances():
    recorded, rows = world(1, 2, 3), drawn_rows(9)
    small = solved(Small(prdc), recorded)
    asked = torch.tanh(torch.randn(24, 1, SPACE.actions, generator=torch.Generator().manual_seed(0)))
    found = small.nets(rows).column("neighbours", "nearest", action=asked)
    all_pairs = pairs(recorded.observation, recorded.action, 2.0)
    queries = pairs(rows.inputs.observation[:, 0], asked[:, 0], 2.0)
    nearest = torch.cdist(queries, all_pairs).argmin(1)
    assert torch.equal(found[:, 0], recorded.action[nearest])
    assert len(nearest.unique()) > 5


@pytest.mark.checks("identity", "prdc")
def test_where_states_alone_count_it_is_td3_bc():
    recorded = world(1, 2, 3)
    far = solved(Small(prdc.with_knobs({"models.neighbours.beta": 1e6})), recorded)
    near, parent = solved(Small(prdc.with_knobs({"models.neighbours.beta": NEAR})), recorded), Small(td3_bc, like=far)
    for update in (1, 2, 3):
        rows = drawn_rows(update)
        own = far.nets(rows, update).actions("now").action.squeeze(2)
        assert torch.equal(far.nets(rows).column("neighbours", "nearest", action=own), rows.action)
        assert not torch.equal(near.nets(rows).column("neighbours", "nearest", action=own), rows.action)
        far.update(rows, update)
        parent.update(rows, update)
    assert_same_weights(far.weights(), parent.weights())


def test_the_nearest_action_by_hand():
    """Two states 1 apart, actions 0 and 1; the policy does 0.9 at the first. At beta 1 the farther pair costs
    1 + 0.01 against 0.81; at beta 0.5 it costs 0.25 + 0.01 and wins."""
    recorded = World(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]]), SearchTree)
    for beta, wanted in ((1.0, 0.0), (0.5, 1.0)):
        model = NearestNeighbour(beta=beta)
        network = model.model_network().build(SPACE, False, 0)
        model.solve(network, recorded)
        assert network.nearest(torch.zeros(1, 1, 1), True, torch.full((1, 1, 1), 0.9)).item() == wanted


def test_choices_and_missing_data_are_refused_before_anything_is_done(tmp_path: Path):
    with pytest.raises(UserError, match="learns from a dataset"):
        up.train("prdc", "gym:Pendulum-v1", out=tmp_path / "run")
    nearest = ("td3", "gym:Pendulum-v1")
    knobs = {"regularize": "TowardsNearest()", "models.neighbours": "NearestNeighbour()"}
    with pytest.raises(UserError, match="learns from a dataset"):
        up.train(*nearest, knobs=knobs, out=tmp_path / "other")


def test_there_is_no_distance_between_images_and_numbers():
    pieces = packing([Piece("camera", (8, 8, 3), True), Piece("joint", (1,), False)])
    with pytest.raises(MethodError, match=r"observations here are joint 1, camera 8x8x3 bytes.*Take td3-bc"):
        NearestNeighbour().model_network().build(ActionSpace((196,), 1, False, pieces=pieces), False, 0)


def test_a_run_that_goes_on_ends_as_one_that_never_stopped(tmp_path: Path):
    settings = dict(task="gym:Pendulum-v1", data=pendulum_log(), steps=4, updates_per_step=3, minibatch=16, checkpoint_every=2,
                    eval_every=0, eval_problems=1, knobs=SMALL)  # fmt: skip
    whole = up.train("prdc", **settings, out=tmp_path / "whole")
    assert whole.metrics[0]["neighbours_pairs"] == 100 and "neighbours_pairs" not in whole.metrics[2]
    with pytest.raises(Crash):
        up.train("prdc", **settings, out=tmp_path / "cut", watcher=Breaks(3))
    up.resume(tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    other = up.train("td3-bc", **settings, out=tmp_path / "other")
    assert other.metrics[-1]["q_loss"] != whole.metrics[-1]["q_loss"]
