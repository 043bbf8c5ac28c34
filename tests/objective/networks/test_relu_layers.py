"""Layers with a backward pass of their own give what torch's operations give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from upslope.objective.networks.layers import MLPStack, collect_gradients

SHAPES = [(1, (4, 6, 5, 2)), (3, (4, 6, 1)), (2, (4, 6, 5, 1)), (2, (4, 3))]


def stack_of(members: int, widths: tuple[int, ...]) -> MLPStack:
    return MLPStack(members, widths, "relu", False, seed=3).double()


def inputs(grad: bool = True) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    seen, beside = (torch.randn(7, size, dtype=torch.float64, generator=random) for size in (3, 1))
    return seen.requires_grad_(grad), beside.requires_grad_(grad)


def loss_of(output: Tensor) -> Tensor:
    return (output * torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)).sum() + output.square().sum()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("members", "widths"), SHAPES)
def test_outputs_and_gradients_are_those_of_torchs_operations(members, widths, frozen):
    stack, (seen, beside) = stack_of(members, widths), inputs()
    quick, plain = stack(seen, frozen, beside.unsqueeze(1)), stack._plain(seen, frozen, beside.unsqueeze(1), 0)
    torch.testing.assert_close(quick, plain)
    asked = [seen, beside, *([] if frozen else stack.leaves.values())]
    for found, expected in zip(torch.autograd.grad(loss_of(quick), asked), torch.autograd.grad(loss_of(plain), asked), strict=True):
        torch.testing.assert_close(found, expected)


def test_members_that_are_not_asked_are_not_computed():
    stack, (seen, beside) = stack_of(3, (4, 6, 5, 1)), inputs()
    for members in (1, 2):
        output = stack(seen, True, beside.unsqueeze(1), members)
        torch.testing.assert_close(output, stack(seen, True, beside.unsqueeze(1))[:members])
        asked = torch.autograd.grad(loss_of(output), [seen, beside])
        expected = torch.autograd.grad(loss_of(stack._plain(seen, True, beside.unsqueeze(1), members)), [seen, beside])
        for found, wanted in zip(asked, expected, strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("members", "widths"), SHAPES)
def test_gradients_collect_where_they_stand(members, widths):
    """Asked twice, and by torch's operations besides, they add up; the next time they begin from zero."""
    stack, (seen, beside) = stack_of(members, widths), inputs(grad=False)

    def loss() -> Tensor:
        wide = torch.cat([beside, 2 * beside], 1).unsqueeze(-1)
        return loss_of(stack(seen, beside=beside.unsqueeze(1))) + loss_of(stack(torch.cat([seen, beside], 1))) + loss_of(
            stack(seen, beside=wide)
        )  # fmt: skip

    expected = torch.cat([each.flatten() for each in torch.autograd.grad(loss(), list(stack.leaves.values()))])
    for _ in range(2):
        collect_gradients(loss(), [stack])
        torch.testing.assert_close(stack.flat.grad, expected)
    assert not stack.collects


def test_nothing_is_collected_of_weights_that_do_not_learn():
    stack, (seen, beside) = stack_of(2, (4, 6, 1)), inputs()
    collect_gradients(loss_of(stack(seen, True, beside.unsqueeze(1))), [stack])
    assert not stack.flat.grad.any() and seen.grad.any() and beside.grad.any()


def test_gradients_can_be_differentiated_again():
    """A penalty on a critic's slope at its inputs."""
    stack, (seen, beside) = stack_of(2, (4, 6, 5, 1)), inputs()
    found = []
    for output in (stack(seen, beside=beside.unsqueeze(1)), stack._plain(seen, False, beside.unsqueeze(1), 0)):
        slopes = torch.autograd.grad(loss_of(output), [seen, beside], create_graph=True)
        penalty = sum(each.square().sum() for each in slopes)
        found.append(torch.autograd.grad(penalty, list(stack.leaves.values()), allow_unused=True))
    for own, torchs in zip(*found, strict=True):
        assert (own is None) == (torchs is None)
        if own is not None:
            torch.testing.assert_close(own, torchs)


def test_no_gradient_keeps_nothing():
    stack, (seen, _) = stack_of(2, (3, 6, 1)), inputs(grad=False)
    assert stack(seen, frozen=True).grad_fn is None
    with torch.no_grad():
        assert stack(seen).grad_fn is None
