"""Learners that each hold a part of the policy learn what whole ones learn, and hold no more than their part."""

from __future__ import annotations

import math

import pytest
import torch
from learners.test_two_learners import METHODS, compare_gradients, steps_of, team
from two_learners import Case, gradients, made

from upslope.errors import UserError
from upslope.learners.optimizer_step import OptimizerStep
from upslope.objective.estimator import early_columns
from upslope.objective.references.speaking import speakers
from upslope.runtime.team_lead import LeadingTeam
from upslope.runtime.tensor_parts import divided, held_here, is_part, part_of
from upslope.setting_up.where import check_shard

__all__ = ["team"]
SHARD = {"learners": 2, "shard": True}
FEW = {"tasks_per_step": 1, "samples_per_task": 1}
THREE = [("grpo", {}), ("bapo", {"passes": 2}), ("ppo", FEW)]
"""One that compares with a reference, one that looks ahead, and one with a head, of which a learner gets no row."""


def begun(team: LeadingTeam, name: str, settings: dict):
    team.tell("begin", lambda: {"method": name, "settings": settings})
    return made((name, settings), team)


@pytest.mark.parametrize("case", THREE, ids=lambda case: case[0])
def test_parts_learn_what_two_whole_learners_learn(team: LeadingTeam, case: Case):
    found = []
    for more in ({"learners": 2}, SHARD):
        learner = begun(team, case[0], case[1] | more)
        metrics = [learner.step(step) for step in (1, 2)]
        found.append((learner, metrics, gradients(learner)))
    (whole, expected, wanted), (parts, metrics, grads) = found
    assert grads.keys() == wanted.keys() and max(float(grad.abs().max()) for grad in wanted.values()) > 1e-3
    for name, grad in wanted.items():
        torch.testing.assert_close(grads[name], grad, rtol=0, atol=1e-6)
    for name, tensor in whole.policy.weights().items():  # rank 0 has the parts whole too, to sample with
        torch.testing.assert_close(parts.policy.whole.weights()[name], tensor, rtol=0, atol=1e-6)
    for one, other in zip(metrics, expected, strict=True):
        assert one.keys() == other.keys()
        assert all("second" in name or math.isclose(one[name], other[name], rel_tol=1e-3, abs_tol=1e-5) for name in one)


def test_the_three_are_of_every_kind():
    assert "reference.start.logp" in METHODS["grpo"].needs() and early_columns(METHODS["bapo"]) and METHODS["ppo"].heads


def test_a_learner_holds_its_part_of_weights_gradients_and_moments(team: LeadingTeam):
    learner = begun(team, "grpo", SHARD)
    learner.step(1)
    step: OptimizerStep = learner.optimizer_step
    whole = learner.policy.whole.trainable()["policy"]
    count = sum(parameter.numel() for parameter in whole)
    assert all(map(is_part, step.parameters())) and [each.shape for each in step.parameters()] == [each.shape for each in whole]
    most = sum(-(-len(parameter) // 2) * parameter[0].numel() for parameter in whole)
    assert count / 2 <= most < 0.51 * count  # rows of an odd number cannot be halved
    kinds = [step.parameters(), step.grads(), *([state[name] for state in step.optimizer.state.values()] for name in MOMENTS)]
    for tensors in [*kinds, list(learner.references.start.model.parameters())]:
        assert sum(held_here(tensor).numel() for tensor in tensors) == most
    state = learner.state()["optimizer"]["state"]  # whole again, for a checkpoint
    assert [state[number]["exp_avg"].shape for number in range(len(whole))] == [each.shape for each in whole]
    for number, parameter in enumerate(step.parameters()):
        for name in MOMENTS:
            assert torch.equal(part_of(state[number][name], parameter), held_here(step.optimizer.state[parameter][name]))
            back = divided(state[number][name], parameter)
            assert torch.equal(held_here(back), held_here(step.optimizer.state[parameter][name])) and back.shape == parameter.shape


MOMENTS = ("exp_avg", "exp_avg_sq")


def test_the_norm_that_clips_is_that_of_the_whole_gradient(team: LeadingTeam):
    learner = begun(team, "ppo", SHARD | {"grad_clip": 0.01})
    metrics = learner.step(1)
    norm = float(torch.cat([grad.flatten() for grad in gradients(learner).values()]).norm())
    assert metrics["grad_norm"] > 0.02 and norm == pytest.approx(0.01, rel=1e-3)


@pytest.mark.torture
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not speakers(method)])
def test_every_method_learns_in_parts_what_it_learns_alone(team: LeadingTeam, name: str):
    """Alone by `transformers` too: what some divide by (spreads of entropy, an untrained scorer) is little more than rounding."""
    alone, together = made((name, {"plain": True})), begun(team, name, SHARD | {"plain": True})
    for step in range(1, steps_of(name) + 1):
        metrics, shared = alone.step(step), together.step(step)
        if not METHODS[name].stages or step == 1:
            compare_gradients(gradients(together), gradients(alone))
        assert shared.keys() == metrics.keys()
        for key, value in metrics.items():
            near = math.isclose(shared[key], value, rel_tol=1e-3, abs_tol=1e-5)
            assert "second" in key or near, f"{key} of step {step}: {shared[key]} together, {value} alone"


def test_who_samples_from_a_reference_is_refused():
    asked = [method for method in METHODS.values() if speakers(method)]
    assert asked
    for method in asked:
        with pytest.raises(UserError, match=f"--shard: data.* of {method.name} samples from the reference"):
            check_shard(method, made_settings())


def made_settings():
    from upslope.runtime.settings import Settings

    return Settings(**SHARD)
