"""Images that are changed when they are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from upslope.objective.data.augment import NoAugmentation, RandomCrop


@pytest.mark.parametrize("channel_axis", [0, 2])
@pytest.mark.parametrize("padding", [1, 3])
def test_a_crop_is_a_shift_with_the_edge_repeated(channel_axis: int, padding: int):
    """Against a loop over pixels."""
    shape = (2, 7, 6) if channel_axis == 0 else (7, 6, 2)
    images = np.random.default_rng(0).integers(0, 256, (20, *shape), np.uint8)
    found = RandomCrop(padding)(images, channel_axis, np.random.default_rng(1))
    down, right = np.random.default_rng(1).integers(0, 2 * padding + 1, (2, 20)) - padding
    assert found.shape == images.shape and found.dtype == np.uint8
    assert {*down.tolist(), *right.tolist()} == set(range(-padding, padding + 1))
    for image, shifted, rows, columns in zip(images, found, down, right, strict=True):
        before, after = (np.moveaxis(each, channel_axis, 0) for each in (image, shifted))
        for y in range(7):
            for x in range(6):
                source = before[:, min(max(y + rows, 0), 6), min(max(x + columns, 0), 5)]
                assert after[:, y, x].tolist() == source.tolist()


def test_nothing_is_changed_unless_it_is_asked_for():
    images = np.zeros((2, 4, 4, 1), np.uint8)
    assert NoAugmentation()(images, 2, np.random.default_rng(0)) is images and not NoAugmentation().for_images
