"""An optimiser for each network."""

from __future__ import annotations

import copy

import pytest
import torch
from stored_rows import Small, drawn_rows

from upslope.learners.network_optimizers import NetworkOptimizers
from upslope.methods import find
from upslope.policies.control.network_policy import flat_modules
from upslope.runtime.settings import Settings
from upslope.testing.table_nets import small

METHOD = small(find("sac")).with_knobs({"models.q.lr_scale": 3.0})


def made(**settings: float) -> tuple[Small, NetworkOptimizers]:
    policy = Small(METHOD)
    given = {"lr": 0.01, "schedule": "constant", "grad_clip": 0.0, "steps": 10, **settings}
    return policy, NetworkOptimizers(METHOD, policy.policy, Settings(**given))


def q_of(policy: Small) -> torch.Tensor:
    return policy.policy.networks["q"].stack.flat


def test_a_step_is_that_of_torchs_adam():
    policy, optimizers = made()
    assert optimizers.set_learning_rate(1) == pytest.approx(0.01)
    twin = q_of(policy).detach().clone().requires_grad_()
    adam = torch.optim.Adam([twin], lr=0.03, betas=(0.9, 0.999), eps=1e-8)
    for _ in range(3):
        optimizers.apply("q", sum(leaf.square().sum() for leaf in policy.policy.networks["q"].stack.leaves.values()))
        adam.zero_grad()
        twin.square().sum().backward()
        adam.step()
    torch.testing.assert_close(q_of(policy).detach(), twin.detach(), rtol=1e-6, atol=1e-7)


def test_one_network_moves_and_the_others_stay():
    policy, optimizers = made()
    optimizers.set_learning_rate(1)
    before = policy.weights()
    optimizers.apply("q", policy.nets(drawn_rows(0), scope="q").value("q", "now", drawn_rows(0).action.unsqueeze(2)).sum())
    moved = {name.partition(".")[0] for name, weight in policy.weights().items() if not torch.equal(weight, before[name])}
    assert moved == {"q"}


def test_gradients_are_clipped_over_all_of_a_network():
    policy, optimizers = made(grad_clip=0.5)
    optimizers.set_learning_rate(1)
    optimizers.apply("q", 100 * sum(leaf.sum() for leaf in policy.policy.networks["q"].stack.leaves.values()))
    norm = torch.linalg.vector_norm(torch.cat([each.flat.grad for each in flat_modules(policy.policy.networks["q"])]))
    assert norm.item() == pytest.approx(0.5, rel=1e-4)


def test_weights_that_are_not_finite_are_seen():
    policy, optimizers = made()
    assert optimizers.finite()
    with torch.no_grad():
        q_of(policy)[3] = torch.nan
    assert not optimizers.finite()


def test_moments_are_carried_over():
    one, first = made()
    loss = lambda policy: sum(leaf.square().sum() for leaf in policy.policy.networks["q"].stack.leaves.values())  # noqa: E731
    first.set_learning_rate(1)
    first.apply("q", loss(one))
    other, second = made()
    other.take(one.weights())
    second.load_state(copy.deepcopy(first.state()))  # as a file would
    second.set_learning_rate(1)
    for policy, optimizers in ((one, first), (other, second)):
        optimizers.apply("q", loss(policy))
    assert torch.equal(q_of(one), q_of(other))
