"""Encoders of images."""

import numpy as np
import pytest
import torch

from upslope.errors import MethodError
from upslope.objective.networks.encoders import NatureCNN, SmallCNN, encoder_for, flat_encoder, vector_size
from upslope.objective.networks.pieces import in_numbers
from upslope.packed import Piece, arrays_of, packed_size, packing
from upslope.types import ActionSpace


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


PIECES = packing([Piece("above", (40, 36, 3), True), Piece("joints", (2, 3), False), Piece("wrist", (1, 50, 40), True)])
SPACE = ActionSpace((packed_size(PIECES),), 2, False, pieces=PIECES)


def rows(count: int) -> torch.Tensor:
    seen = torch.randint(256, (count, *SPACE.observation), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen[:, :24] = torch.randn(count, 6, generator=torch.Generator().manual_seed(1)).view(torch.uint8)
    return seen


def test_images_and_numbers_give_the_features_of_stable_baselines3():
    """Its CombinedExtractor with our weights; it has the pieces in the order of their names, we have numbers first."""
    pytest.importorskip("stable_baselines3")
    from gymnasium import spaces
    from stable_baselines3.common.torch_layers import CombinedExtractor

    encoder = NatureCNN(features=256).build_combined(PIECES, seed=0)
    seen = rows(3)
    found = arrays_of(seen.numpy(), PIECES)
    first = {name: np.moveaxis(found[name], 3, 1) if name == "above" else found[name] for name in found}
    kinds = {name: spaces.Box(0, 255, value.shape[1:], np.uint8) for name, value in first.items() if name != "joints"}
    theirs = CombinedExtractor(spaces.Dict(kinds | {"joints": spaces.Box(-9, 9, (2, 3))}), cnn_output_dim=256)
    for ours, name in zip(encoder.images, ("above", "wrist"), strict=True):
        own = dict(zip(theirs.extractors[name].state_dict(), ours.state_dict().values(), strict=True))
        theirs.extractors[name].load_state_dict(own)
    with torch.no_grad():
        above, joints, wrist = theirs(
            {name: torch.from_numpy(value.copy()).float() / (1 if name == "joints" else 255) for name, value in first.items()}
        ).split([256, 6, 256], 1)
        assert torch.allclose(encoder(seen), torch.cat([joints, above, wrist], 1), atol=1e-6)


def test_what_can_be_mixed_gives_the_same_features():
    encoder, features = flat_encoder(NatureCNN(features=16), SPACE, seed=3)
    assert encoder is not None and features == 6 + 2 * 16
    seen = rows(4)
    assert torch.equal(encoder(in_numbers(seen, PIECES, torch.float32)), encoder(seen))
    assert torch.equal(encoder(seen.unflatten(0, (2, 2)).flatten(0, 1)), encoder(seen))
    gradient = torch.autograd.grad(encoder(mixed := in_numbers(seen, PIECES, torch.float32).requires_grad_()).sum(), mixed)[0]
    assert torch.equal(gradient[:, :6], torch.ones(4, 6)) and gradient[:, 6:].any(0).float().mean() > 0.5


def test_cameras_of_one_size_begin_with_other_weights():
    pieces = packing([Piece(name, (40, 40, 3), True) for name in ("left", "right")])
    left, right = NatureCNN(features=8).build_combined(pieces, seed=0).images
    assert not torch.equal(left.last.weight, right.last.weight)


def test_networks_of_vectors_refuse_both():
    with pytest.raises(MethodError, match="VAE takes vectors, and observations here are joints 2x3, above 40x36x3 bytes, wrist"):
        vector_size(SPACE, "VAE")
