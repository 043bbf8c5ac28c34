"""Perceptrons as models of states, of actions and of choices, and a number alone."""

from __future__ import annotations

import math

import pytest
import torch

from upslope.errors import MethodError
from upslope.objective.networks import MLPEnsemble, Scalar
from upslope.types import ActionSpace

VECTORS, CHOICES = ActionSpace((3,), 2, False), ActionSpace((3,), 4, True)
small = MLPEnsemble(members=2, hidden=(8,))


def test_shapes_of_answers():
    seen, vector, ids = torch.randn(5, 2, 3), torch.randn(5, 2, 6, 2), torch.randint(0, 4, (5, 2, 1))
    assert small.build(VECTORS, False, 0).answer(seen, None, False).shape == (2, 5, 2, 1)
    assert small.build(VECTORS, True, 0).answer(seen, vector, False).shape == (2, 5, 2, 6)
    every = small.build(CHOICES, True, 0).answer(seen, None, False)
    assert every.shape == (2, 5, 2, 4)
    chosen = small.build(CHOICES, True, 0).answer(seen, ids, False)
    assert torch.equal(chosen, every.gather(-1, ids.expand(2, 5, 2, 1)))


def test_a_model_of_actions_wants_one():
    with pytest.raises(MethodError, match="asked without one"):
        small.build(VECTORS, True, 0).answer(torch.randn(1, 1, 3), None, False)


@pytest.mark.parametrize("hidden", [(), (0,), (256, -1)])
def test_layers_of_no_width_are_refused(hidden: tuple[int, ...]):
    with pytest.raises(MethodError, match=r"models.q.network.hidden of MLPEnsemble is .*256,256"):
        MLPEnsemble(hidden=hidden).check_knobs("models.q.network")


def test_a_number_is_learned_through_its_logarithm():
    model = Scalar(start=0.2).build(VECTORS, False, 0)
    seen = torch.randn(4, 1, 3)
    assert model.answer(seen, None, True).shape == (1, 4, 1, 1) and model.answer(seen, None, True).mean().item() == pytest.approx(
        0.2
    )
    model.logarithm(seen, frozen=False).sum().backward()
    assert model.stack.flat.grad.item() == 4.0 and model.stack.flat.item() == pytest.approx(math.log(0.2))
