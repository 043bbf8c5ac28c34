"""Who acts in worlds with exact answers, and how likely each choice was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import upslope as up
from upslope.datasets.behaviours import RandomActions, Sometimes, propensity
from upslope.datasets.controllers import Known
from upslope.errors import Remark, UserError
from upslope.experience.converting import convert
from upslope.tasks import load_task
from upslope.tasks.worlds.tables import Bandit, RandomMDP
from upslope.types import Ended

BANDIT = "gym:upslope/Bandit-v0:arms=4,contexts=2,seed=1"


@pytest.mark.parametrize("recipe", ["random", "scripted", "expert", "noisy:eps=0.3", "mixed:expert=0.5", "two_quality", "segments"])
def test_every_recipe_works_in_a_random_world(recipe: str, tmp_path: Path):
    task = "gym:upslope/RandomMDP-v0:states=6,actions=3,seed=2"
    data = [up.make_data("x", task, recipe, steps=120, seed=5, out=tmp_path / name) for name in ("a", "b")]
    assert data[0].digest == data[1].digest and data[0].card.env == task and data[0].card.decisions == 120
    assert data[0].card.expert > data[0].card.random and data[0].episodes.propensity is None


def test_the_expert_takes_the_best_action_everywhere(tmp_path: Path):
    data = up.make_data("x", "gym:upslope/RandomMDP-v0:states=6,seed=2", "expert", steps=200, out=tmp_path).episodes
    best = RandomMDP(states=6, seed=2).best
    assert (data.action[data.decisions] == best[data.observation[data.decisions].argmax(1)]).all()


def test_logs_of_a_bandit_say_how_likely_each_choice_was(tmp_path: Path):
    data, world = up.make_data("x", BANDIT, "noisy:eps=0.4", steps=400, out=tmp_path).episodes, Bandit(4, 2, 1)
    rows = data.decisions
    best = data.action[rows] == world.best[data.observation[rows].argmax(1)]
    np.testing.assert_allclose(data.propensity[rows], np.where(best, 0.6 + 0.1, 0.1), rtol=1e-6)
    assert (data.ended[rows] == Ended.TERMINATED).all()


def test_weighted_by_them_any_arm_is_judged_rightly(tmp_path: Path):
    """The mean of reward over propensity, where the log did what is asked about, has no bias: within four standard errors."""
    data, world = up.make_data("x", BANDIT, "noisy:eps=0.5", steps=800, out=tmp_path).episodes, Bandit(4, 2, 1)
    rows = data.decisions
    for arm in range(4):
        weighted = (data.action[rows] == arm) * data.reward[rows] / data.propensity[rows]
        assert abs(weighted.mean() - world.reward[:2, arm].mean()) < 4 * weighted.std() / len(rows) ** 0.5
    plain = data.reward[rows].mean()  # of the log itself, which is better than the mean of the arms
    assert plain > world.reward[:2].mean() + 0.05


def test_of_a_mixture_of_episodes_they_are_not_known(tmp_path: Path):
    assert up.make_data("x", BANDIT, "mixed:expert=0.5", steps=20, out=tmp_path).episodes.propensity is None


def test_chances_of_those_who_act():
    task: Any = load_task(BANDIT)
    seen, chance = np.array([1.0, 0.0, 0.0]), RandomActions(task)
    expert = Known()
    expert.begin(Bandit(4, 2, 1), seen, np.random.default_rng(0))
    best = expert.act(seen)
    assert [propensity(chance, seen, arm) for arm in range(4)] == [0.25] * 4
    assert [propensity(RandomActions(task, 0.5), seen, arm) for arm in range(4)] == [0.5, 0.5, 0.0, 0.0]
    assert [propensity(expert, seen, arm) for arm in range(4)] == [float(arm == best) for arm in range(4)]
    assert propensity(Sometimes(expert, chance, lambda _: True), seen, best) == 0.25
    assert propensity(Sometimes(expert, chance, lambda _: 0.2), seen, best) == pytest.approx(0.85)
    assert propensity(Sometimes(object(), chance, lambda _: 0.2), seen, 0) is None  # type: ignore[arg-type]


def test_they_are_kept_in_folders_and_flat_files(tmp_path: Path):
    data = up.make_data("x", BANDIT, "noisy:eps=0.4", steps=30, out=tmp_path)
    for target in ("y.npz", "y.hdf5", "folder/y"):
        again = up.load_data(convert(data, str(tmp_path / target)))
        np.testing.assert_array_equal(again.episodes.propensity, data.episodes.propensity)
        assert again.card.digest == data.card.digest and again.card.env == data.card.env


def test_minari_has_no_place_for_them_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    data = up.make_data("x", BANDIT, "noisy:eps=0.4", steps=30, out=tmp_path)
    with pytest.warns(Remark, match="Minari has no place for propensities"):
        again = up.load_data(convert(data, "minari:me/bandit-v0"))
    assert again.episodes.propensity is None and again.card.digest == data.card.digest


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ([0.5, 0.5], "has 2 propensities and 3 rewards"),
        ([0.5, 0.0, 0.5], "row 1 has the propensity 0; what was chosen had a chance"),
    ],
)
def test_logs_with_wrong_propensities_are_refused(column: list[float], told: str):
    flat = {"observations": np.zeros((3, 1)), "actions": np.zeros(3, int), "rewards": np.ones(3), "terminations": np.ones(3, bool)}
    assert up.load_data({**flat, "propensities": [0.5] * 3}).episodes.propensity.tolist() == [0.5, 0.0] * 3
    with pytest.raises(UserError, match=told):
        up.load_data({**flat, "propensities": column})


def test_episodes_with_wrong_propensities_are_refused():
    def one(chances: Any) -> up.Episode:
        return up.Episode(np.zeros((3, 1)), np.zeros(2, int), np.ones(2), Ended.TERMINATED, chances)

    assert up.load_data([one([0.5, 1.0])]).episodes.propensity.tolist() == [0.5, 1.0, 0.0]
    assert up.load_data([one([0.5, 1.0]), one(None)]).episodes.propensity is None
    with pytest.raises(UserError, match=r"episode 0 has 2 rewards and propensities of shape \(3,\)"):
        up.load_data([one([0.5, 1.0, 1.0])])
