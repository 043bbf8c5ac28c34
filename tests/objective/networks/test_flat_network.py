"""Any module as a flat vector of weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from upslope.errors import MethodError
from upslope.objective.networks.encoders import NatureCNN
from upslope.objective.networks.flat_network import FlatNetwork
from upslope.objective.networks.layers import follow


class Tied(nn.Module):
    """A weight in two places, a buffer, and a parameter that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("offset", torch.arange(3.0))
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.scale * self.second(torch.tanh(self.first(inputs))) + self.offset


def test_it_answers_as_the_module_does_and_learns_the_same():
    module, image = NatureCNN(features=7).build((36, 40, 3), 2, seed=1), torch.randint(256, (4, 36, 40, 3), dtype=torch.uint8)
    flat = FlatNetwork(module)
    assert torch.equal(flat(image), module(image)) and torch.equal(flat(image, frozen=True), module(image))
    slope = torch.randn(4, 7)
    (flat(image) * slope).sum().backward()
    (module(image) * slope).sum().backward()
    assert torch.equal(flat.flat.grad, torch.cat([each.grad.flatten() for each in module.parameters()]))
    assert not flat(image, frozen=True).requires_grad


def test_names_are_the_modules_own_and_what_it_holds_is_the_vector():
    module = NatureCNN(features=7).build((36, 36, 1), 2, seed=1)
    flat = FlatNetwork(module)
    assert list(flat.stored()) == list(dict(module.named_parameters()))
    assert [name for name, _ in flat.named_parameters()] == ["flat"] and not list(flat.buffers())
    with torch.no_grad():
        flat.flat.zero_()
    assert flat(torch.zeros(1, 36, 36, 1, dtype=torch.uint8)).abs().sum() == 0
    assert all(weight.abs().sum() > 0 for weight in module.parameters())


def test_copies_are_whole_and_follow():
    flat = FlatNetwork(Tied())
    lagged, inputs = copy.deepcopy(flat).requires_grad_(False), torch.randn(5, 3)
    assert torch.equal(lagged(inputs), flat(inputs))
    with torch.no_grad():
        flat.flat.add_(1.0)
    assert not torch.equal(lagged(inputs, frozen=True), flat(inputs))
    follow(lagged, flat, 1.0)
    assert torch.equal(lagged(inputs, frozen=True), flat(inputs))
    assert flat.double()(inputs.double()).dtype == torch.float64


def test_shared_weights_and_constants_come_along():
    module, inputs = Tied(), torch.randn(5, 3)
    flat = FlatNetwork(module)
    assert torch.equal(flat(inputs), module(inputs))
    assert set(flat.frozen) == {"first.weight", "first.bias", "second.bias"}
    assert set(flat.stored()) - set(flat.frozen) == {"scale", "offset"}
    flat(inputs).sum().backward()
    module(inputs).sum().backward()
    assert torch.equal(flat.flat.grad[:9].view(3, 3), module.first.weight.grad)


def test_what_computes_other_things_in_training_is_refused():
    for layer in (nn.BatchNorm2d(4), nn.Dropout(0.1)):
        module = nn.Sequential(nn.Conv2d(3, 4, 2), layer)
        with pytest.raises(MethodError, match=rf"{type(layer).__name__} as '1'.*GroupNorm.*eval\(\)"):
            FlatNetwork(module)
        FlatNetwork(module.eval())
    with pytest.raises(MethodError, match="no weights that learn"):
        FlatNetwork(nn.Linear(2, 2).requires_grad_(False))
