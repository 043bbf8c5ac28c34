"""Spaces as arrays: trees flattened in gymnasium's order, images in bytes, and what is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from upslope.errors import TaskError
from upslope.packed import arrays_of
from upslope.tasks.spaces import observation_layout

VECTOR = spaces.Box(-1, 1, (2, 3), np.float64)
IMAGE = spaces.Box(0, 255, (8, 9, 3), np.uint8)
PLACE = spaces.Box(-5, 5, (2,))
GOALS = spaces.Dict(observation=spaces.Box(-5, 5, (4,)), achieved_goal=PLACE, desired_goal=PLACE)
PAIR = spaces.Tuple([spaces.Discrete(3, start=4), VECTOR])
NESTED = spaces.Dict(b=PAIR, a=spaces.MultiBinary(5), c=spaces.Dict(d=spaces.Discrete(2)))


@pytest.mark.parametrize(
    "space",
    [VECTOR, spaces.Discrete(4, start=-2), spaces.MultiBinary([2, 3]), GOALS, NESTED, spaces.Tuple([VECTOR, GOALS])],
    ids=["box", "discrete", "multi-binary", "goals", "nested", "tuple"],
)
def test_one_vector_in_the_order_of_gymnasiums_own_flatten(space: spaces.Space):
    layout = observation_layout("here", space)
    space.seed(0)
    drawn = [space.sample() for _ in range(5)]
    wanted = np.stack([spaces.flatten(space, each) for each in drawn]).astype(np.float32)
    assert layout.shape == wanted.shape[1:] and layout.dtype == np.float32 and not layout.is_image
    write, found = layout.writer(), np.zeros_like(wanted)
    for row, each in zip(found, drawn, strict=True):
        write(row, each)
    assert (found == wanted).all()


def test_many_at_once_are_the_same_as_one_after_the_other():
    layout = observation_layout("here", NESTED)
    NESTED.seed(1)
    drawn = [NESTED.sample() for _ in range(6)]
    together = {
        "a": np.stack([each["a"] for each in drawn]),
        "b": (np.stack([each["b"][0] for each in drawn]), np.stack([each["b"][1] for each in drawn])),
        "c": {"d": np.stack([each["c"]["d"] for each in drawn])},
    }
    rows = layout.rows(together, 6)
    for row, each in zip(rows, drawn, strict=True):
        assert (row == spaces.flatten(NESTED, each).astype(np.float32)).all()


def test_text_in_a_tree_is_left_out_and_said():
    layout = observation_layout("here", spaces.Dict(mission=spaces.Text(9), at=spaces.Discrete(3)))
    assert layout.shape == (3,) and layout.left_out == ("mission",)
    with pytest.raises(TaskError, match="nothing but text"):
        observation_layout("here", spaces.Dict(mission=spaces.Text(9)))
    with pytest.raises(TaskError, match="Text"):
        observation_layout("here", spaces.Text(9))


@pytest.mark.parametrize(
    ("space", "shape", "channels"),
    [
        (IMAGE, (8, 9, 3), 2),
        (spaces.Box(0, 255, (4, 8, 9), np.uint8), (4, 8, 9), 0),
        (spaces.Box(0, 255, (8, 9), np.uint8), (8, 9, 1), 2),
        (spaces.Dict(pixels=IMAGE, mission=spaces.Text(9)), (8, 9, 3), 2),
    ],
    ids=["colour", "stack", "grey", "in a dict"],
)
def test_images_stay_bytes(space: spaces.Space, shape: tuple[int, ...], channels: int):
    layout = observation_layout("here", space)
    assert layout.is_image and layout.shape == shape and layout.dtype == np.uint8 and layout.channel_axis == channels
    space.seed(0)
    drawn, out = space.sample(), np.zeros(shape, np.uint8)
    layout.writer()(out, drawn)
    assert (out.reshape(-1) == (drawn["pixels"] if isinstance(drawn, dict) else drawn).reshape(-1)).all()
    with pytest.raises(ValueError, match="float64"):
        layout.writer()(out, {"pixels": np.zeros(shape)} if isinstance(drawn, dict) else np.zeros(shape))


GREY = spaces.Box(0, 255, (5, 3), np.uint8)
SEEN = spaces.Dict(wrist=GREY, arm=NESTED, above=IMAGE)


def test_images_beside_numbers_are_packed_with_numbers_first():
    layout = observation_layout("here", SEEN)
    assert [piece.name for piece in layout.pieces] == ["arm.a", "arm.b.0", "arm.b.1", "arm.c.d", "above", "wrist"]
    assert layout.shape == (296,) and layout.has_images and not layout.is_image and layout.channel_axis is None
    assert str(layout) == "arm.a 5, arm.b.0 3, arm.b.1 2x3, arm.c.d 2, above 8x9x3 bytes, wrist 5x3x1 bytes"  # 64 + 216 + 15 + 1
    SEEN.seed(0)
    drawn = [SEEN.sample() for _ in range(4)]
    rows = np.zeros((4, *layout.shape), np.uint8)
    for row, each in zip(rows, drawn, strict=True):
        layout.writer()(row, each)
    together = {
        "wrist": np.stack([each["wrist"] for each in drawn]),
        "above": np.stack([each["above"] for each in drawn]),
        "arm": {
            "a": np.stack([each["arm"]["a"] for each in drawn]),
            "b": tuple(np.stack([each["arm"]["b"][place] for each in drawn]) for place in (0, 1)),
            "c": {"d": np.stack([each["arm"]["c"]["d"] for each in drawn])},
        },
    }
    assert np.array_equal(layout.rows(together, 4), rows)
    by_name = [spaces.Dict({key: NESTED[key]}) for key in "abc"]  # NESTED itself has b before a
    flat = [np.concatenate([spaces.flatten(each, row["arm"]) for each in by_name]) for row in drawn]
    assert np.array_equal(layout.numbers(rows), np.stack(flat).astype(np.float32))
    found = arrays_of(rows, layout.pieces)
    assert np.array_equal(found["above"], together["above"]) and np.array_equal(found["wrist"][..., 0], together["wrist"])
    with pytest.raises(ValueError, match=r"'wrist' has the shape \(5, 4\) and the type uint8, not \(5, 3\)"):
        layout.writer()(rows[0], drawn[0] | {"wrist": np.zeros((5, 4), np.uint8)})
    with pytest.raises(ValueError, match=r"'arm\.b\.0' is 9"):
        layout.writer()(rows[0], drawn[0] | {"arm": drawn[0]["arm"] | {"b": (9, np.zeros((2, 3)))}})


def test_two_cameras_have_no_numbers():
    layout = observation_layout("here", spaces.Tuple([IMAGE, GREY]))
    assert [piece.name for piece in layout.pieces] == ["0", "1"] and not layout.numbers(np.zeros((2, *layout.shape), np.uint8)).size


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Dict(image=spaces.Box(0, 255, (4, 8, 8, 3), np.uint8), speed=VECTOR), "4 axes"),
        (spaces.Box(0, 255, (4, 8, 8, 3), np.uint8), "4 axes"),
        (spaces.Dict({"a.b": IMAGE, "a": spaces.Dict(b=PLACE)}), r"two are called alike.*among a\.b;"),
        (spaces.MultiDiscrete([2, 3]), r"MultiDiscrete\(\[2 3\]\)"),
        (spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))), r"Sequence.*part 'a'"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(space: spaces.Space, said: str):
    with pytest.raises(TaskError, match=f"here has .*{said}"):
        observation_layout("here", space)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"observation": None}, "no part 'observation'"), ({"achieved_goal": np.zeros(3)}, "'achieved_goal' has 3")],
)
def test_a_tree_that_is_not_as_declared_is_told(change: dict, said: str):
    whole = {"observation": np.zeros(4), "achieved_goal": np.zeros(2), "desired_goal": np.zeros(2)} | change
    given = {key: value for key, value in whole.items() if value is not None}
    with pytest.raises(ValueError, match=said):
        observation_layout("here", GOALS).writer()(np.zeros(8, np.float32), given)


def test_an_image_that_is_not_there_is_told():
    layout = observation_layout("here", spaces.Dict(pixels=IMAGE))
    for given in ({}, np.zeros((8, 9, 3), np.uint8)):
        with pytest.raises(ValueError, match="no part 'pixels'"):
            layout.writer()(np.zeros((8, 9, 3), np.uint8), given)


def test_a_choice_in_a_tree_must_be_one_of_its_values():
    layout = observation_layout("here", spaces.Dict(at=spaces.Discrete(3, start=1)))
    with pytest.raises(ValueError, match="'at' is 0, which is not in Discrete"):
        layout.writer()(np.zeros(3, np.float32), {"at": 0})
