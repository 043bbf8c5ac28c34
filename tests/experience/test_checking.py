"""What is refused before training, with the episode and the step; and what is only remarked on."""

import dataclasses
import warnings

import numpy as np
import pytest

from upslope.errors import Remark, UserError
from upslope.experience import Dataset, Episode, Episodes, Space, load_dataset
from upslope.experience.checking import check_dataset
from upslope.experience.episodes import NOT_ACTED
from upslope.tasks import load_task
from upslope.types import Ended


def episode(length: int = 4, size: int = 3, actions: np.ndarray | None = None) -> Episode:
    taken = np.zeros((length, 1)) if actions is None else actions
    return Episode(np.zeros((length + 1, size)), taken, np.zeros(length), Ended.TRUNCATED)


def data(env: str = "", size: int = 3, discrete: bool = False) -> Dataset:
    """Three episodes of four decisions, fit for Pendulum: three numbers seen, one given, between -2 and 2."""
    actions = np.zeros(4, int) if discrete else None
    space = Space((), "int64", n=2) if discrete else Space((1,), "float32", low=(-2.0,), high=(2.0,))
    return Dataset.of(Episodes.of([episode(size=size, actions=actions) for _ in range(3)]), "mine", env=env, action=space)


def refused(dataset: Dataset, told: str, task: str = "") -> None:
    with pytest.raises(UserError, match=told):
        check_dataset(dataset, load_task(task) if task else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["", "gym:Pendulum-v1"])
def test_good_data_pass_without_a_word(task: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_dataset(data(task), load_task(task) if task else None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("column", "value"), [("observation", np.nan), ("action", np.inf), ("reward", -np.inf)])
def test_what_is_no_number_is_named_with_its_place(column: str, value: float):
    dataset = data()
    getattr(dataset.episodes, column)[7] = value  # episodes have five rows: the third of the second
    getattr(dataset.episodes, column)[11] = value
    refused(dataset, rf"dataset 'mine': episode 1, step 2 has {value} in its {column} \(and 1 more\)")


def test_a_last_observation_counts_too():
    dataset = data()
    dataset.episodes.observation[4, 1] = np.nan
    refused(dataset, "episode 0, step 4 has nan in its observation")


def test_actions_outside_the_space():
    dataset = data()
    dataset.episodes.action[[6, 8, 13]] = 2.5
    refused(dataset, r"episode 1, step 1 has the action \[2.5\], and the space ends at -2 and 2 \(and 2 more\)")
    choices = data(discrete=True)
    choices.episodes.action[3] = 2
    refused(choices, "episode 0, step 3 has the action 2, and choices are 0 to 1")


def test_rounding_is_not_outside():
    dataset = data()
    dataset.episodes.action[6] = np.nextafter(np.float32(2), np.float32(3))
    check_dataset(dataset, load_task("gym:Pendulum-v1"))  # type: ignore[arg-type]


def test_one_episode_is_remarked_on():
    with pytest.warns(Remark, match="one episode only"):
        check_dataset(Dataset.of(Episodes.of([episode()]), "mine"))


def test_data_of_another_environment():
    refused(
        data("gym:Hopper-v5", size=11), r"\(made in gym:Hopper-v5\) has observations of shape \(11,\).*\(3,\)", "gym:Pendulum-v1"
    )
    refused(data(discrete=True), "has choices as actions, and gym:Pendulum-v1 takes vectors", "gym:Pendulum-v1")
    refused(data(size=2), "has vectors as actions, and gym:MountainCar-v0 takes choices", "gym:MountainCar-v0")
    two = Dataset.of(Episodes.of([episode(actions=np.zeros((4, 2)))] * 2), "mine")
    refused(two, "has actions of 2 numbers, and gym:Pendulum-v1 takes 1", "gym:Pendulum-v1")
    with pytest.warns(Remark, match=r"was made in mine.py:Pole, and the task is gym:Pendulum-v1; their shapes agree"):
        check_dataset(data("mine.py:Pole"), load_task("gym:Pendulum-v1"))  # type: ignore[arg-type]


def test_another_physics_is_another_world_and_another_time_limit_is_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_dataset(data("gym:Pendulum-v1:max_episode_steps=50"), load_task("gym:Pendulum-v1"))  # type: ignore[arg-type]
        changed = data("gym:Pendulum-v1:params.gravity=15,max_episode_steps=50")
        check_dataset(changed, load_task("gym:Pendulum-v1:params.gravity=15"))  # type: ignore[arg-type]
    with pytest.warns(Remark, match="was made in gym:Pendulum-v1:params.gravity=15"):
        check_dataset(changed, load_task("gym:Pendulum-v1"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "value", "told"),
    [
        (14, 0, "does not end with the last observation"),
        (8, NOT_ACTED, "an episode without a decision"),
        (8, 0, "episode 1 has no end behind its last decision"),
        (6, 1, "episode 1, step 1 ended, and the episode goes on"),
    ],
)
def test_columns_that_are_no_whole_episodes(row: int, value: int, told: str):
    dataset = data()
    dataset.episodes.ended[row] = value
    refused(dataset, told)


def test_columns_of_different_lengths():
    whole = data().episodes
    refused(Dataset(Episodes(whole.observation, whole.action, whole.reward[:-1], whole.ended), data().card), "reward 14, ended 15")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (Episode(np.zeros((4, 3)), np.zeros((4, 1)), np.zeros(4), Ended.TRUNCATED), "episode 1 has 4 rewards and 4 observations"),
        (Episode(np.zeros((5, 3)), np.zeros((3, 1)), np.zeros(4), Ended.TRUNCATED), "episode 1 has 4 rewards and 3 actions"),
        (Episode(np.zeros((5, 3)), np.zeros((4, 1)), np.zeros(4), "over"), r"episode 1 has ended='over'; it must be 1"),
        (episode(size=2), r"episode 1 has observations of shape \(2,\), and the first one of shape \(3,\)"),
        (episode(actions=np.zeros(4)), r"episode 1 has actions of shape \(\), and the first one of shape \(1,\)"),
    ],
)
def test_single_episodes_of_wrong_shapes(wrong: Episode, told: str):
    with pytest.raises(UserError, match=told):
        load_dataset([episode(), wrong])


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("observation", np.zeros((15, 3)), r"observation as float64 of shape \(15, 3\); it must be float32 or uint8"),
        ("action", np.zeros(15, np.float32), "action as float32 .* it must be int64"),
        ("reward", [0.0] * 15, r"reward as \[0.0, .*; it must be float32"),
        ("ended", np.zeros(15), "ended as float64 .* it must be int8"),
    ],
)
def test_columns_of_another_kind(column: str, value: object, told: str):
    whole = data().episodes
    columns = {name: getattr(whole, name) for name in ("observation", "action", "reward", "ended")}
    with pytest.raises(UserError, match=told):
        load_dataset(Episodes(**{**columns, column: value}))  # type: ignore[arg-type]


def test_lists_do_as_well_as_arrays():
    given = Episode([[0.0], [1.0]], [1], [0.5], 1)  # type: ignore[arg-type]
    found = load_dataset([given, given]).episodes
    assert found.discrete and found.returns.tolist() == [0.5, 0.5]


def with_masks(mask: np.ndarray) -> Dataset:
    space = Space((), "int64", n=2)
    plain = Episode(np.zeros((5, 3)), np.zeros(4, int), np.zeros(4), Ended.TRUNCATED)
    given = [dataclasses.replace(plain, action_masks=each) for each in (mask, np.ones((5, 2)))]
    return Dataset.of(Episodes.of(given), "mine", action=space)


def test_an_action_that_its_mask_forbids_is_named_with_its_place():
    mask = np.ones((5, 2), int)
    check_dataset(with_masks(mask))
    mask[2:, 0] = 0
    refused(with_masks(mask), r"episode 0, step 2 has the action 0, which its mask forbids \(and 1 more\)")


def test_masks_of_another_size_or_of_some_episodes_are_refused():
    episodes = with_masks(np.ones((5, 2), bool)).episodes
    wider = dataclasses.replace(episodes, action_mask=np.ones((10, 3), bool))
    refused(Dataset.of(wider, "mine", action=Space((), "int64", n=2)), "masks of 3 entries, and there are 2 choices")
    numbers = dataclasses.replace(episodes, action_mask=np.ones((10, 2)))
    with pytest.raises(UserError, match="action_mask as float64 of shape"):
        load_dataset(numbers)
    first, second = episodes
    with pytest.raises(UserError, match="episode 1 has other action_masks than the first"):
        load_dataset([first, dataclasses.replace(second, action_masks=None)])
