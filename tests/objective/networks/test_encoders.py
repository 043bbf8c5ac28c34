"""Encoders of images."""

import pytest
import torch

from upslope.errors import MethodError
from upslope.objective.networks.encoders import NatureCNN, SmallCNN, encoder_for


def test_the_nature_network_has_the_papers_shape():
    encoder = NatureCNN().build((84, 84, 4), 2, seed=0)
    assert sum(weight.numel() for weight in encoder.parameters()) == 32 * (4 * 64 + 1) + 64 * (32 * 16 + 1) + 64 * (
        64 * 9 + 1
    ) + 512 * (64 * 49 + 1)
    assert encoder(torch.zeros(3, 84, 84, 4, dtype=torch.uint8)).shape == (3, 512)


def test_channels_are_found_wherever_they_stand():
    image = torch.randint(256, (2, 84, 84, 4), dtype=torch.uint8)
    last = NatureCNN().build((84, 84, 4), 2, seed=3)(image)
    first = NatureCNN().build((4, 84, 84), 0, seed=3)(image.permute(0, 3, 1, 2))
    assert torch.equal(last, first)


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(1)
    one = NatureCNN(features=8).build((40, 40, 3), 2, seed=5)
    torch.manual_seed(2)
    other = NatureCNN(features=8).build((40, 40, 3), 2, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_small_images_get_the_small_encoder_and_too_small_ones_are_refused():
    assert isinstance(encoder_for((7, 7, 3), 2), SmallCNN)
    assert isinstance(encoder_for((4, 84, 84), 0), NatureCNN)
    with pytest.raises(MethodError, match=r"images of \(7, 7, 3\)"):
        NatureCNN().build((7, 7, 3), 2, seed=0)
