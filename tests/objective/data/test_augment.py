"""Images that are changed when they are drawn."""

from __future__ import annotations

import pytest
import torch

from upslope.objective.data.augment import NoAugmentation, RandomCrop
from upslope.packed import Piece, packed_size, packing
from upslope.types import ActionSpace


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("channel_axis", [0, 2])
@pytest.mark.parametrize("padding", [1, 3, 9])
def test_a_crop_is_a_shift_with_the_edge_repeated(channel_axis: int, padding: int):
    """Against a loop over pixels."""
    shape = (2, 7, 6) if channel_axis == 0 else (7, 6, 2)
    images = torch.randint(256, (40, *shape), generator=seeded(0), dtype=torch.uint8)
    found = RandomCrop(padding)(images, channel_axis, seeded(1))
    down, right = torch.randint(-padding, padding + 1, (2, 40), generator=seeded(1)).tolist()
    assert found.shape == images.shape and found.dtype == torch.uint8
    assert padding > 3 or set(down) == set(right) == set(range(-padding, padding + 1))
    assert padding < 9 or (max(down) > 7 and min(right) < -6)  # more than an image's own size
    for image, shifted, rows, columns in zip(images, found, down, right, strict=True):
        before, after = (each.movedim(channel_axis, 0) for each in (image, shifted))
        for y in range(7):
            for x in range(6):
                source = before[:, min(max(y + rows, 0), 6), min(max(x + columns, 0), 5)]
                assert torch.equal(after[:, y, x], source)


def test_of_images_and_numbers_the_images_are_shifted_each_on_its_own():
    pieces = packing([Piece("a", (6, 5, 3), True), Piece("b", (6, 5, 3), True), Piece("n", (2,), False)])
    seen = torch.randint(256, (30, packed_size(pieces)), generator=seeded(0), dtype=torch.uint8)
    seen[:, pieces[2].begin : pieces[2].end] = seen[:, pieces[1].begin : pieces[1].end]  # both cameras see the same
    found = RandomCrop(2).of_observations(seen, ActionSpace((seen.shape[1],), 2, False, pieces=pieces), seeded(1))
    drawn = seeded(1)
    for piece in pieces[1:]:
        images = seen[:, piece.begin : piece.end].reshape(30, 6, 5, 3)
        assert torch.equal(found[:, piece.begin : piece.end].reshape(30, 6, 5, 3), RandomCrop(2)(images, 2, drawn))
    assert torch.equal(found[:, :8], seen[:, :8]) and torch.equal(found[:, pieces[2].end :], seen[:, pieces[2].end :])
    assert not torch.equal(found[:, pieces[1].begin : pieces[1].end], found[:, pieces[2].begin : pieces[2].end])
    plain = ActionSpace((6, 5, 3), 2, False, 2)
    images = seen[:, pieces[1].begin : pieces[1].end].reshape(30, 6, 5, 3)
    assert torch.equal(RandomCrop(2).of_observations(images, plain, seeded(1)), RandomCrop(2)(images, 2, seeded(1)))


def test_nothing_is_changed_unless_it_is_asked_for():
    images = torch.zeros(2, 4, 4, 1, dtype=torch.uint8)
    assert NoAugmentation()(images, 2, seeded(0)) is images and not NoAugmentation().for_images
