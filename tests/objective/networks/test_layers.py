"""Ensembles as batched products, their weights pieces of one vector."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from upslope.objective.networks.layers import FlatModule, MLPStack, follow


def as_torch(stack: MLPStack, member: int) -> nn.Sequential:
    """One member as torch's own layers."""
    layers: list[nn.Module] = []
    acts = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "gelu": nn.GELU}
    last = len(stack.widths) - 2
    for layer, (inputs, outputs) in enumerate(zip(stack.widths, stack.widths[1:], strict=False)):
        linear = nn.Linear(inputs, outputs)
        linear.weight.data.copy_(stack.frozen[f"{layer}.weight"][member].T)
        linear.bias.data.copy_(stack.frozen[f"{layer}.bias"][member, 0])
        layers.append(linear)
        if layer < last:
            layers += [nn.LayerNorm(outputs)] if stack.layer_norm else []
            layers.append(acts[stack.activation]())
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("members", "activation"), [(1, "relu"), (3, "tanh"), (2, "silu"), (2, "gelu")])
def test_a_stack_is_its_members_side_by_side(members: int, activation: str, layer_norm: bool):
    stack = MLPStack(members, (4, 6, 5, 2), activation, layer_norm, seed=3)
    seen = torch.randn(7, 4)
    alone = torch.stack([as_torch(stack, member)(seen) for member in range(members)])
    torch.testing.assert_close(stack(seen), alone)
    torch.testing.assert_close(stack(seen, frozen=True), alone)
    torch.testing.assert_close(stack(seen, members=1), alone[:1])


def test_inputs_beside_are_those_of_a_longer_row():
    stack, seen, beside = MLPStack(2, (5, 6, 1), "relu", False, seed=0), torch.randn(4, 3), torch.randn(4, 7, 2)
    long = torch.cat([seen.unsqueeze(1).expand(4, 7, 3), beside], -1).flatten(0, 1)
    torch.testing.assert_close(stack(seen, beside=beside), stack(long))
    torch.testing.assert_close(stack(seen, beside=beside[:, :1]), stack(torch.cat([seen, beside[:, 0]], -1)))


def test_members_differ_and_the_seed_says_how():
    one, same, other = (MLPStack(2, (3, 4, 1), "relu", False, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.flat, same.flat) and not torch.equal(one.flat, other.flat)
    assert not torch.equal(one.frozen["0.weight"][0], one.frozen["0.weight"][1])


def test_gradients_of_the_pieces_are_those_of_the_vector():
    stack, seen = MLPStack(2, (3, 4, 1), "relu", False, seed=0), torch.randn(5, 3)
    stack(seen).square().sum().backward()
    pieces = torch.cat([leaf.grad.flatten() for leaf in stack.leaves.values()])
    assert pieces.abs().sum() > 0 and torch.equal(stack.flat.grad, pieces)
    stack.zero_gradient()
    assert not any(leaf.grad.any() for leaf in stack.leaves.values())


def test_frozen_weights_pass_gradient_to_inputs_alone():
    stack, seen = MLPStack(1, (3, 4, 1), "tanh", False, seed=0), torch.randn(5, 3, requires_grad=True)
    stack(seen, frozen=True).sum().backward()
    assert seen.grad.abs().sum() > 0 and not stack.flat.grad.any()


def test_pieces_stay_views_through_copies_and_kinds_of_number():
    stack = MLPStack(1, (3, 4, 1), "relu", False, seed=0)
    for made in (copy.deepcopy(stack), copy.deepcopy(stack).double(), copy.deepcopy(stack).requires_grad_(False)):
        made.flat.data.add_(1.0)
        first = made.frozen["0.weight"]
        torch.testing.assert_close(first.float(), stack.frozen["0.weight"] + 1.0)
        assert made.leaves["0.weight"].data_ptr() == made.frozen["0.weight"].data_ptr()
    assert not copy.deepcopy(stack).requires_grad_(False).leaves["0.weight"].requires_grad


def test_a_copy_follows():
    module, lagged = FlatModule({"a": torch.tensor([1.0, 2.0])}), FlatModule({"a": torch.zeros(2)})
    follow(lagged, module, 0.25)
    assert lagged.frozen["a"].tolist() == [0.25, 0.5]
    follow(lagged, module, 1.0)
    assert torch.equal(lagged.flat, module.flat)
