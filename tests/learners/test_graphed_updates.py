"""Blocks of updates are the same updates: here without a recording; on a GPU the recording is held against these."""

import choice_environments
import image_environment
import pytest
import torch
from pushed_and_back import FILE, PAIR_KNOBS, VICE_KNOBS

from upslope.learners.actor_critic import ActorCritic
from upslope.learners.graphed_updates import BLOCK, GraphedUpdates, cycle_of
from upslope.methods import find
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.testing.runs import random_dataset

SMALL = {"policy.hidden": (8, 8), "models.q.network.hidden": (8, 8)}
TASKS = {"sac": "gym:Pendulum-v1", "td3": "gym:Pendulum-v1", "dqn": "gym:CartPole-v1"}
OF_DATASETS = ("cal-ql", "rlpd", "moorl", "h2o", "serl")
TASKS |= dict.fromkeys(("mdpo-off", *OF_DATASETS), "gym:Pendulum-v1") | {"serl": f"{FILE}:pair"}


def learner(name: str, blocks: bool, updates: int = 50) -> ActorCritic:
    knobs = {path: value for path, value in SMALL.items() if name != "dqn" or not path.startswith("policy")}
    knobs |= {"acting.0.steps": 20} | ({"models.q.lag_every": 70} if name == "dqn" else {})
    knobs |= {f"models.{each}.network.hidden": (8, 8) for each in ("pair_source", "step_source") if name == "h2o"}
    knobs |= {**PAIR_KNOBS, **VICE_KNOBS, "models.q.network.members": 2} if name == "serl" else {}
    settings = Settings(steps=4, horizon=25, updates_per_step=updates, minibatch=8, seed=3, offline_steps=0)
    dataset = random_dataset(TASKS[name]) if name in OF_DATASETS else None
    made = set_up(find(name), TASKS[name], "tiny", settings, knobs=knobs, dataset=dataset)
    found = ActorCritic(made.method, made.policy, made.rollout, made.settings)
    if blocks:
        found.graphed = GraphedUpdates(made.policy, made.method, found._draw, found._learn)
    return found


@pytest.mark.parametrize("name", [*TASKS, "dqn with masks"])
def test_blocks_end_in_the_same_weights_and_metrics(name, monkeypatch):
    if name.endswith("masks"):
        name = "dqn"
        monkeypatch.setitem(TASKS, name, f"{choice_environments.__file__}:Traps")
    plain, blocks = learner(name, False), learner(name, True)
    for step in (1, 2, 3):
        found, expected = blocks.step(step), plain.step(step)
        assert {key for key in expected if "second" not in key} == {key for key in found if "second" not in key}
        for key in ("q_loss", "q_value", "updates"):
            assert found.get(key) == pytest.approx(expected.get(key), rel=1e-12)
    weights = plain.policy.weights()
    assert all(torch.equal(weight, weights[key]) for key, weight in blocks.policy.weights().items())


def test_a_block_begins_anywhere_in_the_cycle_of_delays():
    """td3's policy moves every second update; blocks of three begin at both kinds."""
    plain, blocks = learner("td3", False, updates=75), learner("td3", True, updates=75)
    for step in (1, 2):
        plain.step(step), blocks.step(step)
    assert {key for key in blocks.graphed._recordings} == {(0, 3), (1, 3)}
    assert torch.equal(plain.policy.weights()["policy.0.weight"], blocks.policy.weights()["policy.0.weight"])
    assert cycle_of(plain.method, plain.policy) == 2 and BLOCK % 2 == 0


def test_a_meta_step_is_part_of_the_cycle():
    plain = learner("moorl", False)
    assert cycle_of(plain.method, plain.policy) == 5


def test_slowly_renewed_copies_are_part_of_the_cycle_only_where_that_is_short():
    long = learner("dqn", False)
    assert long.policy.lags["q"] == (1.0, 70) and cycle_of(long.method, long.policy) == 1


def test_a_knob_that_moves_drops_what_was_recorded():
    found = learner("sac", True)
    found.step(1)
    assert found.graphed._recordings
    found.graphed.forget()
    assert not found.graphed._recordings
    found.step(2)
    assert found.graphed._recordings


def test_blocks_from_images_end_in_the_same_weights():
    def of_images(blocks: bool) -> ActorCritic:
        settings = Settings(steps=4, envs=2, horizon=10, updates_per_step=20, minibatch=4, seed=3)
        knobs = {"acting.0.steps": 8, "models.q.network.encoder": "SmallCNN(features=8, channels=4)"}
        made = set_up(find("dqn"), f"{image_environment.__file__}:Beacon", "tiny", settings, knobs=knobs)
        found = ActorCritic(made.method, made.policy, made.rollout, made.settings)
        if blocks:
            found.graphed = GraphedUpdates(made.policy, made.method, found._draw, found._learn)
        return found

    plain, blocks = of_images(False), of_images(True)
    for step in (1, 2, 3):
        found, expected = blocks.step(step), plain.step(step)
        assert found["q_loss"] == pytest.approx(expected["q_loss"], rel=1e-12)
    weights = plain.policy.weights()
    assert all(torch.equal(weight, weights[key]) for key, weight in blocks.policy.weights().items())
    assert any(key.startswith("lagged.q.encoder.") for key in weights)
