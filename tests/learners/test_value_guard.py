"""Values that rewards and discount cannot explain end a run; values that they can do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from places import TESTS

import upslope as up
from upslope.errors import UserError
from upslope.learners.nonfinite import NonFinite
from upslope.learners.value_guard import check_values
from upslope.methods import find
from upslope.types import Ended


@pytest.mark.parametrize("value", [1e4, -1e4, float("nan"), float("inf")])
def test_what_no_return_can_be_is_told_with_metric_and_knob(value: float):
    with pytest.raises(NonFinite, match=r"step 7: q_value is .*rewards of at most 2 and a discount of 0.9 no return is above 20"):
        check_values(find("td3"), {"q_value": value}, 2.0, 0.9, 7)


def test_what_a_return_can_be_passes():
    for name, metrics in (("td3", {"q_value": -55.0}), ("sac", {"q_value": 250.0, "temperature": 2.0, "entropy": 5.0}), ("bc", {})):
        check_values(find(name), metrics, 2.0, 0.9, 1)
    check_values(find("td3"), {"q_value": 1000.0}, 1.0, 1.0, 1)


def test_the_cure_is_that_of_the_method():
    for name, says in (("td3", "td3-bc, iql, cql"), ("td3-bc", "stronger pull to the data")):
        with pytest.raises(NonFinite) as stopped:
            check_values(find(name), {"q_value": 1e6}, 1.0, 0.9, 1)
        assert says in f"{stopped.value} {vars(stopped.value)}"


# -- a run that leaves all bounds ----------------------------------------------------------------------------------------------

REWARD = 0.01


class Still(gymnasium.Env[np.ndarray, np.ndarray]):
    """Nothing ever changes, and whatever is done pays the same: every value is 1, a hundred times the reward."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), REWARD, False, self.steps >= 20, {}


def train_on_one_action(name: str, out: Path) -> up.Run:
    """Learns from episodes in which nobody ever did anything but 0.

    Where the action is always 0 nothing is learned of w. Plain td3 drives the action to 1, and its target is
    ``r + 0.99 (b + w)``: the value that agrees with itself is 100 (r + 0.99 w) = 10.9, where 1 is true and more than 3 cannot be.
    The actor of td3-bc rests at 1.25 w / b, and ``b = r + 0.99 (b + 1.25 w^2 / b)`` has its solution at 1.7.
    """
    episode = up.Episode(np.zeros((21, 1)), np.zeros((20, 1)), np.full(20, REWARD), Ended.TRUNCATED)
    return up.train(f"{TESTS}/narrow_critic.py:narrow-{name}", Still, data=[episode, episode], out=out, steps=14, offline_steps=14,
                    updates_per_step=25, minibatch=16, lr=0.01, eval_problems=1, checkpoint_every=5, record="none")  # fmt: skip


def test_plain_td3_on_narrow_data_ends_at_its_last_good_checkpoint(tmp_path: Path):
    with pytest.raises(UserError) as ended:
        train_on_one_action("td3", tmp_path / "run")
    told = str(ended.value)
    assert "q_value is 3." in told and "rewards of at most 0.01 and a discount of 0.99 no return is above 1:" in told
    assert "td3-bc, iql, cql), a lower --lr, or models.q.network.layer_norm=true" in told
    run = up.load(tmp_path / "run", task=Still)
    good = re.search(r"its checkpoint (step-\d+) is good", told)
    assert good is not None and run.folder.checkpoints()[-1].name == good[1]
    assert all(abs(record["q_value"]) <= 3 for record in run.metrics if "q_value" in record)
    assert np.isfinite(run.predict(np.zeros(1, np.float32))[0]).all()


def test_td3_bc_on_the_same_data_does_not(tmp_path: Path):
    run = train_on_one_action("td3-bc", tmp_path / "run")
    assert run.metrics[-1]["q_value"] == pytest.approx(1.7, abs=0.2)


@pytest.mark.slow
def test_on_a_cheetah_that_hardly_moves_td3_ends_and_the_advice_helps(tmp_path: Path):
    """A tenth of the actions' range is in the data. Targets follow ten times as fast as usual, which only saves updates; td3-bc at
    its usual scale runs into the guard here too, and a stronger pull, as its message says, keeps it from that."""
    data = up.make_data("narrow", "gym:HalfCheetah-v5", "narrow_action:share=0.1", steps=1000, out=tmp_path)
    small = {"policy.hidden": (64, 64), "models.q.network.hidden": (64, 64), "models.q.lag": 0.05, "policy.lag": 0.05}
    settings = {"data": data, "steps": 16, "offline_steps": 16, "updates_per_step": 50, "minibatch": 64, "eval_problems": 1,
                "eval_every": 100, "record": "none"}  # fmt: skip
    with pytest.raises(UserError, match=r"q_value is .*a discount of 0.99 no return is above 27.5.* is good"):
        up.train("td3", "gym:HalfCheetah-v5", knobs=small, out=tmp_path / "td3", **settings)
    pulled = up.train("td3-bc", "gym:HalfCheetah-v5", knobs=small | {"surrogate.scale": 0.25}, out=tmp_path / "td3-bc", **settings)
    assert 0 < pulled.metrics[-1]["q_value"] < 27.5
