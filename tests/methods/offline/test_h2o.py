"""H2O: SAC on the union of rows where it trusts the simulator, and its losses written out with torch's own modules."""

from __future__ import annotations

import pytest
import torch
from beside_off_policy import (
    ACTIONS,
    NARROW,
    OBSERVATION,
    ROWS,
    OurUpdates,
    assert_bitwise_equal,
    assert_same_weights,
    layers_of_stack,
    linears,
    our_policy,
    random_noise,
    random_rows,
)
from torch import Tensor, nn

from upslope.methods import find
from upslope.policies.control.network_policy import NetworkPolicy
from upslope.types import Trajectories

REAL = 12
SMALL = NARROW | {f"models.{name}.network.hidden": (16, 16) for name in ("pair_source", "step_source")}
STILL = {f"models.{name}.lr_scale": 0.0 for name in ("pair_source", "step_source")}
h2o = find("h2o").with_knobs(SMALL)


def rows_of_both(seed: int, continuous: bool = True) -> Trajectories:
    return random_rows(seed, continuous, demonstrated=REAL)


@pytest.mark.checks("identity", "h2o")
@pytest.mark.parametrize("continuous", [True, False])
def test_without_penalty_and_with_equal_weights_it_is_sac_on_the_union(continuous: bool):
    trusting = h2o.with_knobs(
        {"models.q.penalty.weight": 0.0, "models.q.importance.low": 1.0, "models.q.importance.high": 1.0, "models.q.weight": 0.5}
    )
    sac = find("sac").with_knobs(NARROW | {"models.q.target.entropy": False})
    ours, other = our_policy(trusting, continuous), our_policy(sac, continuous)
    left, right = OurUpdates(trusting, ours, lr=1e-3), OurUpdates(sac, other, lr=1e-3)
    for seed in range(3):
        left(rows_of_both(seed, continuous), random_noise(seed))
        right(rows_of_both(seed, continuous), random_noise(seed))
    assert_bitwise_equal(ours, other)


def _probabilities(policy: NetworkPolicy, state: Tensor, action: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """Of the pair and of the whole transition, real first, as the paper writes them."""
    pair, step = (layers_of_stack(policy.networks[name].stack) for name in ("pair_source", "step_source"))
    of_pair = 2 * pair(torch.cat([state, action], -1)).tanh()
    of_step = 2 * step(torch.cat([state, action, following], -1)).tanh()
    return of_pair.softmax(-1), (of_step + of_pair).softmax(-1)


def _target(policy: NetworkPolicy, rows: Trajectories, noise: object) -> Tensor:
    drawn = policy.actor.sample(rows.inputs.following, noise("normal", "next/policy/1", (ROWS, 1, 1, ACTIONS)), True)
    behind = policy.lagged["q"].answer(rows.inputs.following, drawn.action, True).amin(0).view(ROWS)
    return rows.step_reward.view(ROWS) + rows.signal["discount"].view(ROWS) * behind


@pytest.mark.checks("oracle", "h2o", by="the formulas, written with torch's modules")
def test_the_critics_move_as_the_formula_says():
    """With as many rows of one kind as of the other twice the mean over all is the sum of both means; here it is the first."""
    method = h2o.with_knobs(STILL | {"models.q.penalty.weight": 0.7, "models.q.penalty.spread": 0.5})
    policy, rows, noise = our_policy(method), rows_of_both(0), random_noise(0)
    state, action, following = rows.inputs.observation.squeeze(1), rows.action.squeeze(1), rows.inputs.following.squeeze(1)
    real = torch.arange(ROWS) >= ROWS - REAL
    with torch.no_grad():
        pair, step = _probabilities(policy, state, action, following)
        ratio = (step[:, 0] * pair[:, 1] / (step[:, 1] * pair[:, 0])).clamp(1e-5, 1)
        tried = following.unsqueeze(1) + 0.5 * noise("normal", "source/tried", (ROWS, 1, 10, OBSERVATION)).squeeze(1)
        pair, step = _probabilities(
            policy, state.unsqueeze(1).expand_as(tried), action.unsqueeze(1).expand(-1, 10, -1), tried
        )  # fmt: skip
        logarithm = (step[..., 1] * pair[..., 0] / (step[..., 0] * pair[..., 1])).log()
        gap = logarithm.mean(1).clamp(1e-30, 10)[~real]
        target = _target(policy, rows, noise)
    critics = [layers_of_stack(policy.networks["q"].stack, member) for member in range(2)]
    optimizer = torch.optim.Adam([each for critic in critics for each in critic.parameters()], lr=1e-3)
    weighted = torch.zeros((), dtype=torch.float64)
    for critic in critics:
        value = critic(torch.cat([state, action], -1)).view(ROWS)
        counted = torch.where(real, 1.0, ratio) * (value - target).square()
        pressed = (value[~real] + (gap / gap.sum()).log()).logsumexp(0)
        weighted = weighted + 2 * counted.mean() + 0.7 * (pressed - value[real].mean())
    weighted.backward()
    optimizer.step()

    found = OurUpdates(method, policy, lr=1e-3)(rows, noise)
    assert found["q_loss"] == pytest.approx(weighted.item(), rel=1e-9)
    assert_same_weights(policy.networks["q"].stack, *map(linears, critics), tolerance=1e-9)


@pytest.mark.checks("oracle", "h2o", by="the formulas, written with torch's modules")
def test_the_discriminators_descend_cross_entropies():
    policy, rows, noise = our_policy(h2o), rows_of_both(0), random_noise(0)
    shape = (ROWS, 1, OBSERVATION)
    state = (rows.inputs.observation + 0.1 * noise("normal", "source/now", shape)).squeeze(1)
    action = (rows.action + 0.1 * noise("normal", "source/action", (ROWS, 1, ACTIONS))).squeeze(1)
    following = (rows.inputs.following + 0.1 * noise("normal", "source/next", shape)).squeeze(1)
    pair, step = _probabilities(policy, state, action, following)
    kind = (torch.arange(ROWS) < ROWS - REAL).long()
    found = OurUpdates(h2o.with_knobs({"models.pair_source.lr_scale": 0.0}), policy, lr=1e-3)(rows, noise)
    assert found["pair_source_loss"] == pytest.approx(nn.functional.nll_loss(pair.log(), kind).item(), rel=1e-9)
    assert found["step_source_loss"] == pytest.approx(nn.functional.nll_loss(step.log(), kind).item(), rel=1e-9)


def _shifted(seed: int, shift: float) -> Trajectories:
    """The state behind is the state itself in the real world, and further on by ``shift`` in the simulator."""
    rows = random_rows(seed, rows=64, demonstrated=32)
    moved = torch.where(torch.arange(64) < 32, shift, 0.0).view(64, 1, 1)
    here = rows.inputs.observation
    return rows.replace(inputs=type(rows.inputs)(here, here + moved + 0.05 * rows.inputs.following))


@pytest.mark.parametrize(("shift", "low", "high"), [(0.0, 0.6, 1.0), (1.0, 0.0, 0.1)])
def test_simulated_rows_count_by_how_likely_they_are_in_the_real_world(shift: float, low: float, high: float):
    from upslope.objective.critics.dynamics_gap import DynamicsRatio
    from upslope.policies.control.bound_networks import BoundNetworks

    method = h2o.derive(models={name: model for name, model in h2o.models if name != "temperature"}).with_knobs(
        {"surrogate.temperature": 0.1, "models.q.target.temperature": 0.1}
    )
    policy = our_policy(method)
    updates = OurUpdates(method, policy, lr=3e-3)
    for seed in range(80):
        found = updates(_shifted(seed, shift), random_noise(seed))
    rows = _shifted(1000, shift)
    weight = DynamicsRatio()(rows.replace(nets=BoundNetworks(policy, rows.inputs, random_noise(1000))))
    assert torch.equal(weight[32:], torch.ones_like(weight[32:])), "real rows"
    assert low <= weight[:32].mean() <= high
    assert (found["step_source_accuracy"] > 0.95) == (shift > 0)


def _silent(policy: NetworkPolicy) -> NetworkPolicy:
    """Discriminators that cannot tell."""
    for name in ("pair_source", "step_source"):
        policy.networks[name].stack.flat.detach().zero_()
    return policy


def test_a_gap_that_is_the_same_everywhere_presses_evenly():
    method = h2o.with_knobs(STILL)
    policy, rows, noise = _silent(our_policy(method)), rows_of_both(3), random_noise(3)
    value = policy.networks["q"].answer(rows.inputs.observation, rows.action.unsqueeze(2), True).view(2, ROWS)
    simulated, real = value[:, : ROWS - REAL], value[:, ROWS - REAL :]
    even = simulated.exp().mean(1).log() - real.mean(1)
    found = OurUpdates(method, policy, lr=1e-3)(rows, noise)
    assert found["q_penalty"] == pytest.approx(0.01 * even.sum().item(), rel=1e-9)


@pytest.mark.parametrize("demonstrated", [ROWS, 0])
def test_updates_of_one_kind_of_rows_stay_finite(demonstrated: int):
    policy = our_policy(h2o)
    found = OurUpdates(h2o, policy, lr=1e-3)(random_rows(0, demonstrated=demonstrated), random_noise(0))
    assert all(torch.isfinite(weight).all() for weight in policy.weights().values())
    assert (found["q_penalty"] == 0) == (demonstrated == ROWS), "nothing is pressed where nothing was simulated"


def test_beyond_its_limit_the_penalty_is_flat():
    """The difference is cut at the limit, and pulls at nothing."""
    rows, noise = rows_of_both(0), random_noise(0)
    one = STILL | {"models.q.network.members": 1}
    limited, free = (h2o.with_knobs(one | {"models.q.penalty.weight": weight, "models.q.penalty.limit": limit})
                     for weight, limit in ((1.0, 1e-6), (0.0, 1000.0)))  # fmt: skip
    policies = [our_policy(limited), our_policy(free)]
    found = [OurUpdates(method, policy, lr=1e-3)(rows, noise) for method, policy in zip((limited, free), policies, strict=True)]
    assert abs(found[0]["q_penalty"]) == pytest.approx(1e-6, rel=1e-6)
    assert_bitwise_equal(*policies)


def test_what_it_needs():
    assert "label.source" in h2o.needs() and h2o.data[0].needs_dataset and not h2o.offline
