"""Making data: every recipe does what it says, to the bit, once."""

import math
from pathlib import Path

import numpy as np
import pytest
from choice_environments import Dials, Traps

from upslope.datasets import making
from upslope.datasets.collecting import collect
from upslope.datasets.making import env_text, half, make_data
from upslope.datasets.oracle import CubeOracle
from upslope.errors import Remark, UserError
from upslope.experience import Dataset, Episode, load_dataset
from upslope.experience.checking import check_dataset
from upslope.experience.measures import trajectory_quality
from upslope.tasks import load_task
from upslope.tasks.env_sources import FromFactory
from upslope.tasks.gym import GymTask
from upslope.types import Ended

PENDULUM = "gym:Pendulum-v1:max_episode_steps=50"


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(making, "REFERENCE_EPISODES", 4)


def made(recipe: str, task: str = PENDULUM, steps: int = 1000, seed: int = 0, name: str = "mine") -> Dataset:
    return make_data(name, task, recipe, steps, seed, out="")


def torques(dataset: Dataset) -> np.ndarray:
    return dataset.episodes.action[dataset.episodes.decisions, 0]


@pytest.mark.parametrize(
    "recipe",
    ["random", "scripted", "expert", "noisy", "mixed", "segments", "two_quality:axis=2", "narrow_action", "noisy:of=random"],
)
def test_every_recipe_gives_so_many_steps_and_the_same_again(recipe: str):
    one, again, other = made(recipe, steps=330, name="one"), made(recipe, steps=330, name="two"), made(recipe, seed=1, name="other")
    assert len(one.episodes.decisions) == 330 == one.card.steps
    assert one.digest == again.digest != other.digest
    assert one.card.env == PENDULUM and one.card.recipe.startswith(recipe.partition(":")[0]) and one.card.reference_episodes == 4
    assert one.card.random < one.card.expert < 0
    check_dataset(one, load_task(PENDULUM))  # type: ignore[arg-type]
    assert load_dataset("one").digest == one.digest


def test_a_last_episode_that_stops_with_the_steps_says_so():
    assert made("random", steps=120, name="a").card.unfinished
    assert not made("random", steps=100, name="b").card.unfinished
    assert made("random", steps=120).episodes.lengths.tolist() == [50, 50, 20]


def test_random_and_expert_are_as_good_as_their_names():
    assert abs(trajectory_quality(made("random", name="a"))) < 0.25
    assert abs(trajectory_quality(made("expert", name="b")) - 1) < 0.25
    assert made("expert", name="c").digest == made("scripted", name="d").digest


def test_noise_and_mixture_lie_between():
    whole = "gym:Pendulum-v1"
    quality = [
        trajectory_quality(made(recipe, whole, 2000, name=f"n{number}"))
        for number, recipe in enumerate(["random", "mixed:expert=0.5", "noisy:eps=0.6", "expert"])
    ]
    assert quality[0] < quality[1] < quality[2] < quality[3]


def test_of_a_mixture_this_share_of_episodes_is_the_experts():
    found = made("mixed:expert=0.25", steps=1000)  # 20 episodes
    expert = [episode for episode in found.episodes if np.abs(episode.actions).max() == 2.0]  # clipped, as random ones never are
    assert len(found) == 20 and len(expert) == 5
    assert made("mixed:expert=0", name="none").digest == made("random", name="random").digest
    assert made("mixed:expert=1", name="all").digest == made("expert", name="expert").digest


def test_noise_of_nothing_is_the_other_and_noise_of_all_is_random():
    assert made("noisy:eps=0", name="a").digest == made("expert", name="b").digest
    assert abs(torques(made("noisy:eps=1", name="c"))).max() < 2
    changed = (torques(made("noisy:eps=0.3", name="d", steps=50)) != torques(made("expert", name="e", steps=50))).mean()
    assert changed > 0.3  # from the first random action on, the expert has other states to act in


def test_segments_never_hold_a_whole_episode():
    found = made("segments", "gym:FrozenLake-v1:is_slippery=false", steps=12).episodes
    ways = [[int(state.argmax()) for state in episode.observations] for episode in found]
    assert [(way[0], len(way)) for way in ways] == [(0, 4), (ways[0][-1], 4)] * 2
    assert [way[-1] == 15 for way in ways] == [False, True, False, True]
    assert [episode.ended for episode in found] == [Ended.TRUNCATED, Ended.TERMINATED] * 2


def test_where_no_episode_has_halves_it_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("upslope.datasets.collecting.MOST_IN_VAIN", 3)
    with pytest.raises(UserError, match="of 3 episodes of gym:Pendulum-v1 none was long enough to keep a part of it"):
        made("segments", "gym:Pendulum-v1:max_episode_steps=1")


def test_a_half_by_hand():
    states, numbers = np.arange(6.0)[:, None], np.arange(5)
    whole = Episode(states, numbers, numbers, Ended.TERMINATED)
    first, second = half(0, whole), half(1, whole)
    assert first is not None and second is not None
    assert (first.observations[:, 0].tolist(), first.actions.tolist(), first.ended) == ([0, 1, 2], [0, 1], Ended.TRUNCATED)
    assert (second.observations[:, 0].tolist(), second.actions.tolist(), second.ended) == (
        [2, 3, 4, 5],
        [2, 3, 4],
        Ended.TERMINATED,
    )
    assert half(0, Episode(states[:2], numbers[:1], numbers[:1], Ended.TERMINATED)) is None


def test_two_qualities_are_told_apart_by_the_state():
    found = made("two_quality:axis=2", "gym:Pendulum-v1", steps=2000).episodes
    seen, taken = found.observation[found.decisions], found.action[found.decisions, 0]
    expert = made("expert", "gym:Pendulum-v1", name="expert")
    assert expert.card.env == "gym:Pendulum-v1"
    from upslope.datasets.controllers import PendulumSwingUp

    controller, env = PendulumSwingUp(), load_task("gym:Pendulum-v1").make_one()  # type: ignore[union-attr]
    controller.begin(env.unwrapped, seen[0], np.random.default_rng(0))
    same = np.array([controller.act(state)[0] for state in seen]).astype(np.float32) == taken
    speed = seen[:, 2]
    assert same[speed > 0.5].all() and not same[speed < -0.5].any()


def test_narrow_actions_stay_in_the_middle_of_their_range():
    assert 0.9 < np.abs(torques(made("narrow_action:share=0.5", name="a"))).max() <= 1.0
    assert np.abs(torques(made("narrow_action:share=0.2,of=expert", name="b"))).max() == np.float32(0.4)
    choices = made("narrow_action:share=0.5", "gym:Acrobot-v1:max_episode_steps=50", name="c").episodes
    assert set(choices.action.tolist()) == {0, 1}  # two of three


def test_choices_and_tables_too():
    found = made("expert", "gym:FrozenLake-v1:is_slippery=false", steps=60)
    assert found.card.expert == 1 and found.card.random < 0.5
    assert found.card.action.n == 4 and found.card.observation.shape == (16,)
    assert found.episodes.lengths.tolist() == [6] * 10 and (found.episodes.returns == 1).all()


def test_another_physics_has_an_expert_and_scores_of_its_own():
    usual, heavy = made("expert", "gym:Pendulum-v1", name="a"), made("expert", "gym:Pendulum-v1:params.gravity=15", name="b")
    assert heavy.card.env == "gym:Pendulum-v1:params.gravity=15" and heavy.card.expert < usual.card.expert
    assert abs(trajectory_quality(heavy) - 1) < 0.3


def test_a_maze_with_a_tree_of_observations():
    found = made("expert", "gym:PointMaze_UMaze-v3:continuing_task=False", steps=200)
    assert found.card.observation.shape == (8,) and found.card.expert == 1 and found.card.random < 1
    assert (found.episodes.returns[:-1] == 1).all()


CUBE = "gym:cube-single-singletask-v0:max_episode_steps=80"  # -1 a step until the cube is there


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of glfw, that there is no screen
def test_a_manipulator_brings_the_cube_to_its_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(making, "REFERENCE_EPISODES", 1)
    one = made("oracle", CUBE, steps=80)
    assert one.card.random == -80 < one.card.expert < -20
    assert one.card.decisions == 80 and one.card.action.size == 5
    assert one.episodes.episode(0).ended == Ended.TERMINATED and len(one.episodes.episode(0)) < 80
    again = collect(load_task(CUBE), lambda _: CubeOracle("plan"), 80, 0).episodes  # type: ignore[arg-type]
    assert Dataset.of(again).digest == one.digest


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_that_looks_anew_at_every_step_does_too():
    found = collect(load_task(CUBE), lambda _: CubeOracle("markov"), 80, 0).episodes  # type: ignore[arg-type]
    assert found.episode(0).ended == Ended.TERMINATED and len(found.episode(0)) < 80


def test_where_no_expert_is_known_scores_are_not_normalised():
    with pytest.warns(Remark, match="has no scripted controller: what an expert returns there is not known"):
        found = made("random", "gym:Acrobot-v1:max_episode_steps=50", steps=100)
    assert math.isnan(found.card.expert) and math.isnan(found.normalised(1.0)) and found.card.random == -50


# -- names ---------------------------------------------------------------------------------------------------------------------


def test_the_very_same_recipe_is_found_again(monkeypatch: pytest.MonkeyPatch):
    first = made("noisy:eps=0.3", steps=100)

    def nothing(*_: object, **__: object) -> None:
        raise AssertionError("it was played again")

    monkeypatch.setattr(making, "collect", nothing)
    assert made("noisy", steps=100).card == first.card
    for other in (dict(recipe="noisy:eps=0.2"), dict(seed=1), dict(steps=101), dict(task="gym:Pendulum-v1")):
        with pytest.raises(
            UserError, match=r"mine is there already, and was made otherwise: noisy:eps=0.3,of=expert on gym:Pend.*100"
        ):
            made(**{"recipe": "noisy:eps=0.3", "steps": 100, **other})  # type: ignore[arg-type]


def test_nothing_else_is_written_over():
    Path("mine").mkdir()
    with pytest.raises(UserError, match="mine is there already, and is no dataset"):
        made("random")
    for name in ("", "a/b", "../a", ".hidden", "a b"):
        with pytest.raises(UserError, match="cannot be the name of a dataset"):
            made("random", name=name)


def test_by_default_data_go_to_data():
    make_data("hopper-random", PENDULUM, "random", 10)
    assert load_dataset("hopper-random").card.name == "hopper-random"
    assert Path("data/hopper-random").is_dir()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (dict(task=""), "--task is missing"),
        (dict(task="reverse"), "--task reverse: data are made in environments, and this is text"),
        (dict(steps=0), "--steps 0: data need at least 1"),
        (dict(recipe="medium"), "--recipe medium needs a trained run: --from RUN"),
        (dict(recipe="replay"), "--recipe replay needs a trained run: --from RUN"),
        (dict(task="gym:Hopper-v5", recipe="expert"), "gym:Hopper-v5 has no scripted controller"),
        (dict(recipe="oracle"), "oracle works in OGBench's cube environments, such as gym:cube-single"),
        (dict(recipe="two_quality:axis=3"), "is 3 numbers; axis=3 must be one of a vector's numbers"),
    ],
)
def test_what_cannot_be_made_is_refused(given: dict, told: str):
    with pytest.raises(UserError, match=told):
        make_data("mine", **{"task": PENDULUM, "recipe": "random", "steps": 10, **given})
    assert not Path("data").exists()


def test_the_task_is_written_as_it_was_made():
    physics = "gym:Pendulum-v1:params.gravity=15"
    for text in ("gym:Pendulum-v1", "gym:FrozenLake-v1:is_slippery=False", physics, f"{physics},max_episode_steps=50"):
        assert env_text(load_task(text)) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", ["random", "noisy:of=random", "narrow_action:of=random", "segments:of=random"])
def test_data_keep_to_the_masks_and_keep_them(recipe: str):
    task = GymTask(FromFactory(Traps))
    found = make_data("masked", task, recipe, 60, 0, out="")
    for episodes in (found.episodes, load_dataset("masked").episodes):
        assert not (episodes.ended == Ended.TERMINATED).any() and episodes.action_mask.shape == (len(episodes.ended), 6)
        assert episodes.action_mask[np.arange(len(episodes.ended)), episodes.observation.argmax(-1)].all()
    check_dataset(found, task)


def test_several_choices_at_once_are_refused_before_anything_is_played():
    with pytest.raises(UserError, match=r"MultiDiscrete\(\[3 2 4\].*several choices at once.*ppo learns them"):
        make_data("dials", GymTask(FromFactory(Dials)), "random", 60, 0, out="")
