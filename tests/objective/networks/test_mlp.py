"""Perceptrons as models of states, of actions and of choices, and a number alone."""

from __future__ import annotations

import math

import pytest
import torch

from upslope.errors import MethodError
from upslope.objective.networks import ActionVAE, DiscriminatorNetwork, MLPEnsemble, NatureCNN, Scalar
from upslope.objective.networks.layers import MLPStack
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


@pytest.mark.parametrize("hidden", [(0,), (256, -1)])
def test_layers_of_no_width_are_refused(hidden: tuple[int, ...]):
    with pytest.raises(MethodError, match=r"models.q.network.hidden of MLPEnsemble is .*256,256"):
        MLPEnsemble(hidden=hidden).check_knobs("models.q.network")


def test_no_hidden_layer_is_a_linear_function_where_an_encoder_may_stand_before_it():
    MLPEnsemble(hidden=()).check_knobs("models.q.network")
    model, seen = MLPEnsemble(members=1, hidden=()).build(VECTORS, False, 0), torch.randn(4, 1, 3)
    torch.testing.assert_close(
        model.answer(2 * seen, None, True) + model.answer(0 * seen, None, True), 2 * model.answer(seen, None, True)
    )
    with pytest.raises(MethodError, match=r"models.gap.network.hidden of DiscriminatorNetwork is \(\)"):
        DiscriminatorNetwork(hidden=()).check_knobs("models.gap.network")


def test_members_look_through_one_encoder():
    images, seen = ActionSpace((12, 12, 3), 2, False, 2), torch.randint(256, (5, 2, 12, 12, 3), dtype=torch.uint8)
    model, actions = small.build(images, True, 0), torch.randn(5, 2, 6, 2)
    asked = []
    model.encoder.register_forward_hook(lambda module, inputs, found: asked.append(len(found)))
    found = model.answer(seen, actions, False)
    assert found.shape == (2, 5, 2, 6) and asked == [10], "an observation is encoded once, however many actions are asked about"
    features = model.encoder(seen.flatten(0, 1), True)
    torch.testing.assert_close(
        found.flatten(1, 2), model.stack(features, True, actions.flatten(0, 1)).squeeze(-1).unflatten(1, (10, 6))
    )
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"stack", "encoder"}


def test_vectors_are_seen_as_they_are_and_by_the_same_weights_as_before_encoders():
    model = small.build(VECTORS, True, 7)
    assert model.encoder is None
    assert torch.equal(model.stack.flat, MLPStack(2, (5, 8, 1), "relu", False, 7).flat)


def test_networks_for_vectors_refuse_images():
    images = ActionSpace((12, 12, 3), 2, False, 2)
    for network in (DiscriminatorNetwork(), ActionVAE()):
        with pytest.raises(MethodError, match=rf"{type(network).__name__} takes vectors.*\(12, 12, 3\)"):
            network.build(images, True, 0)
    with pytest.raises(MethodError, match=r"encoder is for images.*vectors of 3"):
        MLPEnsemble(encoder=NatureCNN()).build(VECTORS, True, 0)


def test_a_number_is_learned_through_its_logarithm():
    model = Scalar(start=0.2).build(VECTORS, False, 0)
    seen = torch.randn(4, 1, 3)
    assert model.answer(seen, None, True).shape == (1, 4, 1, 1) and model.answer(seen, None, True).mean().item() == pytest.approx(
        0.2
    )
    model.logarithm(seen, frozen=False).sum().backward()
    assert model.stack.flat.grad.item() == 4.0 and model.stack.flat.item() == pytest.approx(math.log(0.2))
