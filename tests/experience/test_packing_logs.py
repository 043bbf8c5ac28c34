"""Logs of images and numbers: an array for each piece, packed into rows of bytes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from upslope.errors import UserError
from upslope.experience import Episode, Space, load_dataset
from upslope.experience.checking import check_dataset
from upslope.experience.coverage import unique_pairs
from upslope.experience.neighbours import neighbourhoods
from upslope.experience.packing_logs import pack_columns
from upslope.packed import arrays_of
from upslope.types import Ended

CAMERA, JOINTS = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3), np.linspace(0, 1, 10).reshape(5, 2)
REST = {"actions": np.zeros(4, np.int64), "rewards": np.ones(4), "terminations": [0, 0, 0, 1]}


def test_bytes_of_two_axes_and_more_are_images():
    rows, pieces = pack_columns({"camera": CAMERA, "arm": {"joints": JOINTS, "bits": CAMERA[:, 0]}, "t": np.arange(5)}, "it has x")
    assert [(piece.name, piece.shape, piece.is_image) for piece in pieces] == [
        ("arm.bits", (3,), False), ("arm.joints", (2,), False), ("t", (1,), False), ("camera", (4, 3, 1), True)]  # fmt: skip
    found = arrays_of(rows, pieces)
    assert np.array_equal(found["arm.bits"], CAMERA[:, 0]) and np.array_equal(found["camera"][..., 0], CAMERA)
    assert np.array_equal(found["arm.joints"], JOINTS.astype(np.float32))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"joints": JOINTS}, "no image among them.*as one array"),
        ({"camera": CAMERA, "joints": JOINTS[:3]}, "different lengths: camera 5, joints 3"),
        ({"camera": CAMERA, "names": ["a"] * 5}, r"'names' of type <U1 and shape \(5,\)"),
        ({"camera": CAMERA, "ragged": [[1], [2, 3]]}, "'ragged' rows of different shapes"),
        ({"camera": np.zeros((5, 2, 4, 4, 3), np.uint8)}, r"'camera' of shape \(5, 2, 4, 4, 3\); an image is"),
        ({"camera": CAMERA, "t": 3.0}, "'t' of type float64"),
    ],
)
def test_what_cannot_be_packed_is_told(columns: dict, said: str):
    with pytest.raises(UserError, match=f"the log has observations.*{said}"):
        pack_columns(columns, "the log has observations")


def test_a_dict_in_the_dict_of_columns():
    seen = {"camera": CAMERA[:4], "joints": JOINTS[:4]}
    data = load_dataset({"observations": seen, "next_observations": {"camera": CAMERA[1:], "joints": JOINTS[1:]}, **REST})
    whole = load_dataset([Episode({"camera": CAMERA, "joints": JOINTS}, REST["actions"], REST["rewards"], Ended.TERMINATED)])
    assert data.digest == whole.digest and data.card.observation == whole.card.observation
    assert load_dataset({"observations": seen, **REST}).episodes.pieces == data.episodes.pieces
    check_dataset(data)
    with pytest.raises(UserError, match="next_observations of camera 4x3x1 bytes beside observations of joints 2, camera"):
        load_dataset({"observations": seen, "next_observations": {"camera": CAMERA[1:]}, **REST})
    with pytest.raises(UserError, match="episode 1 has observations of one array, and the first one of joints 2, camera"):
        both = {"camera": CAMERA, "joints": JOINTS}, np.zeros((5, 20), np.uint8)
        load_dataset([Episode(each, REST["actions"], REST["rewards"], Ended.TERMINATED) for each in both])


def test_numbers_that_are_none_are_found_among_the_bytes():
    joints = JOINTS.copy()
    joints[2, 1] = np.nan
    data = load_dataset([Episode({"camera": CAMERA, "joints": joints}, np.zeros(4, int), np.zeros(4), Ended.TERMINATED)])
    with pytest.raises(UserError, match="episode 0, step 2 has nan in its observation"):
        check_dataset(data)


def test_measures_take_numbers_for_numbers():
    """Where the camera shows nothing, they are those of the joints alone."""
    rng = np.random.default_rng(0)
    joints, actions = rng.integers(0, 3, (40, 2)).astype(np.float32), rng.integers(0, 2, 39)
    blind = load_dataset([Episode(joints, actions, np.zeros(39), Ended.TERMINATED)]).episodes
    seeing = {"camera": np.zeros((40, 2, 2), np.uint8), "joints": joints}
    both = load_dataset([Episode(seeing, actions, np.zeros(39), Ended.TERMINATED)]).episodes
    assert unique_pairs(both).count == unique_pairs(blind).count < 39
    space = Space((), "int64", n=2)
    found, alone = (neighbourhoods(each, space) for each in (both, blind))
    assert found == alone and found.state_similarity > 0
