"""Actors beside torch's own distributions, and in numpy beside themselves in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import distributions as dist

from upslope.objective.networks.layers import FlatModule, MLPStack
from upslope.policies.control.actors import (
    NUMPY_ACTIVATIONS,
    CertainActor,
    GaussianActor,
    SoftmaxActor,
    numpy_forward,
    torch_forward,
)

SEEN = torch.randn(6, 1, 3, generator=torch.Generator().manual_seed(0))


def gaussian(squashed: bool, shared: bool) -> GaussianActor:
    own = FlatModule({"log_std": torch.tensor([-0.5, 0.3])}) if shared else None
    return GaussianActor(MLPStack(1, (3, 8, 2 if shared else 4), "relu", False, 1), 2, squashed, own)


def as_torch(actor: GaussianActor) -> dist.Distribution:
    mean, log_std = (each.unsqueeze(2) for each in actor.parameters_at(SEEN, True))
    normal = dist.Normal(mean, log_std.exp())
    made = dist.TransformedDistribution(normal, dist.TanhTransform(cache_size=1)) if actor.squashed else normal
    return dist.Independent(made, 1)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("squashed", [False, True])
def test_log_probabilities_of_vectors_are_torchs(squashed: bool, shared: bool):
    actor = gaussian(squashed, shared)
    noise = torch.randn(6, 1, 5, 2)
    drawn = actor.sample(SEEN, noise, True)
    asked = drawn.action if squashed else 0.9 * drawn.action
    torch.testing.assert_close(actor.logp(SEEN, asked, True), as_torch(actor).log_prob(asked), rtol=1e-4, atol=1e-4)
    if squashed:
        torch.testing.assert_close(drawn.logp, as_torch(actor).log_prob(drawn.action), rtol=1e-3, atol=1e-3)
    inside = drawn.action.abs().amax(-1) < 0.999
    torch.testing.assert_close(drawn.logp[inside], actor.logp(SEEN, drawn.action, True)[inside], rtol=1e-3, atol=1e-3)
    assert drawn.action.abs().max() <= 1


def test_recorded_actions_at_the_ends_are_finite():
    actor = gaussian(True, False)
    found = actor.logp(SEEN, torch.ones(6, 1, 1, 2), False)
    found.sum().backward()
    assert found.isfinite().all() and actor.stack.flat.grad.isfinite().all()


def test_a_sample_carries_gradient_as_far_as_it_is_asked_to():
    actor, noise = gaussian(True, False), torch.randn(6, 1, 1, 2)
    drawn = actor.sample(SEEN, noise, False)
    (gradient,) = torch.autograd.grad(drawn.action.sum() + drawn.logp.sum(), [actor.stack.leaves["0.weight"]])
    assert gradient.abs().sum() > 0
    assert not actor.sample(SEEN, noise, True).action.requires_grad


def test_a_certain_actor_does_not_draw():
    actor = CertainActor(MLPStack(1, (3, 8, 2), "relu", False, 1), 2)
    drawn = actor.sample(SEEN, torch.randn(6, 1, 4, 2), False)
    assert torch.equal(drawn.action[:, :, 0], drawn.action[:, :, 3]) and not drawn.logp.any()
    near, far = (actor.logp(SEEN, drawn.action + by, True) for by in (0.0, 0.1))
    torch.testing.assert_close(near - far, torch.full_like(near, 0.5 * 2 * 0.1**2))


def test_a_softmax_is_torchs_categorical_and_is_drawn_by_its_shares():
    actor = SoftmaxActor(MLPStack(1, (3, 8, 4), "tanh", False, 2), 4)
    by_torch = dist.Categorical(logits=actor.output(SEEN, True))
    ids = torch.arange(4).expand(6, 1, 4)
    wanted = by_torch.logits.gather(-1, ids)
    torch.testing.assert_close(actor.logp(SEEN, ids, True), wanted)
    even = (torch.arange(10_000) + 0.5) / 10_000
    drawn = actor.sample(SEEN, even.expand(6, 1, 10_000), True)
    shares = torch.stack([(drawn.action == choice).float().mean(-1) for choice in range(4)], -1)
    torch.testing.assert_close(shares, by_torch.probs, rtol=0, atol=2e-4)
    assert actor.sample(SEEN, torch.ones(6, 1, 1), True).action.max() <= 3, "a number that rounds to one is no fifth choice"


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", NUMPY_ACTIVATIONS)
def test_numpy_computes_what_torch_does(activation: str, layer_norm: bool):
    stack, seen = MLPStack(3, (4, 8, 6, 2), activation, layer_norm, 5), np.random.default_rng(0).standard_normal((5, 4), np.float32)
    np.testing.assert_allclose(numpy_forward(stack, seen, None), torch_forward(stack, seen), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(numpy_forward(stack, seen, 2), torch_forward(stack, seen)[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("actor", [gaussian(True, False), gaussian(False, True)], ids=["squashed", "clipped"])
def test_acting_draws_what_learning_draws(actor: GaussianActor):
    noise = torch.randn(6, 2)
    drawn = actor.sample(SEEN, noise.view(6, 1, 1, 2), True).action.view(6, 2)
    output = numpy_forward(actor.stack, SEEN[:, 0].numpy())
    np.testing.assert_allclose(actor.choose(output, noise.numpy(), greedy=False), drawn.numpy(), rtol=1e-4, atol=1e-5)
    still = actor.sample(SEEN, torch.zeros(6, 1, 1, 2), True).action.view(6, 2)
    np.testing.assert_allclose(actor.choose(output, noise.numpy(), greedy=True), still.numpy(), rtol=1e-4, atol=1e-5)


def test_choices_are_taken_as_learning_takes_them():
    actor, uniform = SoftmaxActor(MLPStack(1, (3, 8, 4), "tanh", False, 2), 4), torch.rand(6)
    output = numpy_forward(actor.stack, SEEN[:, 0].numpy())
    assert (
        actor.choose(output, uniform.numpy(), False).tolist()
        == actor.sample(SEEN, uniform.view(6, 1, 1), True).action.flatten().tolist()
    )
    assert actor.choose(output, uniform.numpy(), True).tolist() == output.argmax(-1).tolist()
