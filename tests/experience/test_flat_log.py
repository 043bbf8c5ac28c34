"""Flat logs against tables worked out by hand: where episodes end, what they ended in, and what cannot be read."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from upslope.errors import Remark, UserError
from upslope.experience.dataset import Dataset, load_dataset
from upslope.experience.episodes import NOT_ACTED
from upslope.experience.flat_log import from_flat, to_flat
from upslope.experience.formats import WRITERS
from upslope.types import Ended

NO, OVER, CUT = Ended.NO, Ended.TERMINATED, Ended.TRUNCATED
F, T = False, True


def log(**other: Any) -> dict[str, Any]:
    """Seven rows: three that terminate, two that are cut, two where the log merely stops. Row r saw r, and came to r + 0.5."""
    columns = {
        "observations": np.arange(7.0).reshape(7, 1),
        "actions": np.arange(7.0).reshape(7, 1) / 10,
        "rewards": np.arange(1.0, 8.0),
        "terminations": np.array([F, F, T, F, F, F, F]),
        "truncations": np.array([F, F, F, F, T, F, F]),
        "next_observations": np.array([1, 2, 2.5, 4, 4.5, 6, 6.5]).reshape(7, 1),
    }
    return {name: value for name, value in {**columns, **other}.items() if value is not None}


def test_every_step_is_kept_where_the_next_observations_are():
    found = from_flat(log(), "log")
    assert found.observation[:, 0].tolist() == [0, 1, 2, 2.5, 3, 4, 4.5, 5, 6, 6.5]
    assert found.ended.tolist() == [NO, NO, OVER, NOT_ACTED, NO, CUT, NOT_ACTED, NO, CUT, NOT_ACTED]
    assert found.reward.tolist() == [1, 2, 3, 0, 4, 5, 0, 6, 7, 0]
    assert np.allclose(found.action[:, 0], [0, 0.1, 0.2, 0, 0.3, 0.4, 0, 0.5, 0.6, 0])
    assert found.lengths.tolist() == [3, 2, 2] and found.returns.tolist() == [6, 9, 13]


def test_without_them_the_last_row_of_a_cut_episode_is_only_an_observation():
    found = from_flat(log(next_observations=None), "log")
    assert found.observation[:, 0].tolist() == [0, 1, 2, 2, 3, 4, 5, 6]
    assert found.ended.tolist() == [NO, NO, OVER, NOT_ACTED, CUT, NOT_ACTED, CUT, NOT_ACTED]
    assert found.reward.tolist() == [1, 2, 3, 0, 4, 0, 6, 0]


def test_d4rl_has_other_names_for_the_ends():
    ours = log()
    theirs = {**ours, "terminals": ours["terminations"], "timeouts": ours["truncations"].astype(np.uint8)}
    del theirs["terminations"], theirs["truncations"]
    assert load_dataset(theirs).digest == load_dataset(ours).digest


def test_an_end_that_is_both_is_a_termination():
    both = from_flat(log(truncations=np.array([F, F, T, F, T, F, F])), "log")
    assert both.ended.tolist() == from_flat(log(), "log").ended.tolist()


def test_an_episode_that_goes_on_elsewhere_was_cut():
    jumps = log(truncations=np.zeros(7, bool))
    with pytest.warns(Remark, match=r"next_observations of row 4 is not the observation of row 5.*taken to be cut there"):
        found = from_flat(jumps, "log")
    assert found.ended.tolist() == from_flat(log(), "log").ended.tolist()


def test_columns_are_read_back_to_the_same_episodes():
    for columns in (log(), log(actions=np.arange(7) % 3), log(observations=_images(7), next_observations=_images(7, 100))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Remark)  # the images come from nowhere
            found = from_flat(columns, "log")
        again = from_flat(to_flat(found), "log")
        assert Dataset.of(again).digest == Dataset.of(found).digest


def _images(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count * 12).astype(np.uint8).reshape(count, 2, 2, 3)


def test_what_actions_are():
    assert from_flat(log(actions=np.arange(7)), "log").action.dtype == np.int64
    assert from_flat(log(actions=np.arange(7).reshape(7, 1)), "log").discrete
    assert from_flat(log(actions=np.arange(7.0)), "log").action.shape == (10, 1)
    assert from_flat(log(actions=np.ones((7, 2, 2))), "log").action.shape == (10, 4)


def test_images_stay_bytes_and_vectors_of_bytes_do_not():
    with pytest.warns(Remark):
        images = from_flat(log(observations=_images(7), next_observations=_images(7, 100)), "log")
    assert images.observation.dtype == np.uint8 and images.observation.shape[1:] == (2, 2, 3)
    small = np.arange(7, dtype=np.uint8).reshape(7, 1)
    assert from_flat(log(observations=small, next_observations=None), "log").observation.dtype == np.float32


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (log(actions=None), r"log has no 'actions'. It wants observations, .*; it has observations, rewards"),
        (log(terminations=None, truncations=None), "neither 'terminations' nor 'truncations'"),
        (log(terminations=np.zeros(7), truncations=np.zeros(7)), "no episode ends in 7 rows. Set 'terminations'"),
        (log(observations=np.zeros((8, 1))), "8 observations and 7 rewards"),
        (log(actions=np.zeros((6, 1))), "6 actions and 7 rewards"),
        (log(terminations=np.zeros(6)), "6 terminations and 7 rewards"),
        (log(next_observations=np.zeros((7, 2))), r"next_observations of shape \(2,\) beside observations of shape \(1,\)"),
        (log(rewards=np.zeros((7, 2))), r"rewards of shape \(7, 2\)"),
        ({name: column[:0] for name, column in log().items()}, r"rewards of shape \(0,\).*at least one"),
        (log(rewards=np.float64(1)), "'rewards' as a single value"),
        (log(truncations=[[1], [2, 3]]), "'truncations' with rows of different shapes"),
        (log(rewards=np.array(["a"] * 7)), "rewards of type <U1; they must be numbers"),
        (log(actions=np.zeros((7, 0))), r"actions of shape \(7, 0\): there is no number in them"),
        (log(observations=np.array(["a"] * 7)), "observations of type <U1; they must be numbers"),
        (log(actions=np.array(["a"] * 7)), "actions of type <U1; they must be numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_words(columns: dict[str, Any], told: str):
    with pytest.raises(UserError, match=told):
        from_flat(columns, "log")


def test_a_log_that_stops_in_an_episode_says_so():
    assert load_dataset(log()).card.unfinished and load_dataset(log(next_observations=None)).card.unfinished
    assert not load_dataset(log(truncations=np.array([F, F, F, F, T, F, T]))).card.unfinished
    shorter = {name: column[:6] for name, column in log().items()}
    assert load_dataset(shorter).card.unfinished
    del shorter["next_observations"]
    assert not load_dataset(shorter).card.unfinished  # its last row shows no step and is left out


def test_one_row_shows_no_step():
    row = {name: column[:1] for name, column in log(next_observations=None).items()} | {"truncations": [True]}
    with pytest.raises(UserError, match="no episode of two rows or more"):
        from_flat(row, "log")
    assert from_flat({**row, "next_observations": [[5.0]]}, "log").observation[:, 0].tolist() == [0, 5]


def test_masks_are_read_and_written():
    masks, following = np.ones((7, 2), np.int8), np.ones((7, 2), np.int8)
    masks[:, 1], following[:, 0] = 0, 0
    ids = {"actions": np.zeros(7, np.int64)}
    found = from_flat(log(**ids, action_masks=masks, next_action_masks=following), "log")
    first, last = [True, False], [False, True]
    assert found.action_mask.tolist() == [first, first, first, last, first, first, last, first, first, last]
    again = from_flat(to_flat(found), "log")
    assert again.action_mask.tolist() == found.action_mask.tolist() and again.action_mask.dtype == bool
    unknown = from_flat(log(**ids, action_masks=masks), "log")
    assert unknown.action_mask[3].all(), "what nobody wrote down allows everything"
    assert from_flat(log(), "log").action_mask is None
    for wrong in ({"action_masks": masks[:5]}, {"action_masks": 3 * masks}, {"action_masks": masks, "next_observations": None}):
        with pytest.raises(UserError, match="action_masks"):
            from_flat(log(**ids, **wrong), "log")


@pytest.mark.parametrize("suffix", ["npz", "hdf5"])
def test_files_keep_masks(suffix: str, tmp_path: Path):
    masks = np.eye(2, dtype=np.int8)[[0, 1, 0, 0, 1, 1, 0]]
    whole = Dataset.of(from_flat(log(actions=masks.argmax(1), action_masks=masks), "log"), "mine")
    for path in (whole.save(tmp_path / "folder"), tmp_path / f"log.{suffix}"):
        if path.suffix:
            WRITERS[path.suffix](whole, path)
        found = load_dataset(str(path))
        assert found.digest == whole.digest and (found.episodes.action_mask == whole.episodes.action_mask).all()
    assert whole.digest != Dataset.of(dataclasses.replace(whole.episodes, action_mask=None)).digest
