"""The networks of control policies: gradients written out by hand, weights as views of one vector, a lean Adam."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from upslope.errors import UserError
from upslope.learners.adam import Adam
from upslope.policies.control.mlp import ControlInputs, MLPPolicy
from upslope.policies.control.network import Categorical, actions_at, forbid
from upslope.types import Head, Trajectories, View

ALL = frozenset({"entropy", "value", "median"})


def policy_with_heads(continuous: bool, activation: str = "tanh", hidden=(7, 5)) -> MLPPolicy:
    policy = MLPPolicy(3, 4, continuous, hidden=hidden, activation=activation, seed=1)
    policy.add_value_head(2)
    policy.add_head("median", Head(), 3)
    policy.actor[-1].weight.mul_(50)  # away from uniform, where entropy has no slope
    if policy.log_std is not None:
        policy.log_std.copy_(torch.tensor([-0.5, 0.0, 0.3, 0.7]))
    return policy


def rows_for(policy: MLPPolicy, rows: int = 6, positions: int = 2) -> Trajectories:
    random = torch.Generator().manual_seed(0)
    shape = (rows, positions)
    drawn = torch.randn(*shape, 4, generator=random) if policy.sizes.continuous else torch.randint(0, 4, shape, generator=random)
    ones = torch.ones(shape)
    return Trajectories(sampled=ones, reward=torch.zeros(rows), group=torch.arange(rows), task=torch.arange(rows),
                        behavior=View(ones), action=drawn,
                        inputs=ControlInputs(torch.randn(*shape, 3, generator=random)))  # fmt: skip


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "silu", "relu"])
def test_the_gradients_written_out_are_those_of_the_function(continuous, activation):
    policy = policy_with_heads(continuous, activation).double()
    rows = rows_for(policy)
    # It moves the vectors in place, of which the layers are views.
    look = lambda *flats: tuple(policy.evaluate(rows, ALL).columns().values())  # noqa: E731
    assert torch.autograd.gradcheck(look, tuple(policy.flat.values()))


def weight_like(column: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 2, column.numel(), dtype=column.dtype).view(column.shape)


@pytest.mark.parametrize("continuous", [False, True])
def test_the_way_without_torchs_graph_is_the_way_through_it(continuous):
    policy = policy_with_heads(continuous)
    rows = rows_for(policy)
    view = policy.evaluate(rows, ALL)
    grads = {name: weight_like(column.detach()) * (1 + place) for place, (name, column) in enumerate(view.columns().items())}
    torch.autograd.backward([view[name] for name in grads], list(grads.values()))
    through = {name: flat.grad.clone() for name, flat in policy.flat.items()}
    policy.zero_grad()
    length = policy.backward_pass(policy.forward_pass(rows, ALL), {name: grad.numpy() for name, grad in grads.items()})
    for name, flat in policy.flat.items():
        assert torch.equal(flat.grad, through[name]) and flat.grad.abs().max() > 0
    assert length == pytest.approx(float(torch.cat(list(through.values())).norm()), rel=1e-5)


def test_what_no_column_asks_for_gets_no_gradient():
    policy = policy_with_heads(False)
    policy.backward_pass(policy.forward_pass(rows_for(policy), ALL), {"value": np.ones((6, 2), np.float32)})
    assert policy.flat["policy"].grad is None and policy.flat["median"].grad is None and policy.flat["value"].grad.any()


def test_an_impossible_action_has_no_part_in_the_entropy():
    policy = MLPPolicy(1, 3, False)
    policy.actor[-1].weight.zero_()
    policy.actor[-1].bias.copy_(torch.tensor([0.0, 0.0, -torch.inf]))
    acted = policy.act(torch.zeros(1, 1), torch.tensor([0.1]))
    assert acted.entropy.item() == pytest.approx(np.log(2))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy)), MLPPolicy.frozen_copy])
def test_a_copy_has_layers_of_its_own_vectors(how):
    policy = policy_with_heads(True)
    made = how(policy)
    policy.actor[0].weight.zero_()
    assert made.actor[0].weight.any() and made.log_std.any()
    made.critic[0].weight.fill_(3.0)
    made.log_std.fill_(5.0)
    assert (made.flat["value"] == 3.0).sum() == made.critic[0].weight.numel() and made.flat["policy"][-1] == 5.0
    assert policy.critic[0].weight.ne(3.0).all()


def test_weights_go_by_the_name_of_their_layer_and_those_of_another_network_are_refused():
    policy = policy_with_heads(True)
    names = set(policy.weights())
    assert {"actor.0.weight", "critic.2.bias", "heads.median.1.weight", "log_std"} <= names
    other = policy_with_heads(True)
    other.flat["policy"].data.zero_()
    other.load_weights({name: weight.clone() for name, weight in policy.weights().items()})
    assert all(torch.equal(other.flat[name], flat) for name, flat in policy.flat.items())
    with pytest.raises(UserError, match=r"heads\.median\.0\.bias"):
        MLPPolicy(3, 4, True, hidden=(7, 5)).load_weights(policy.weights())


def test_the_lean_adam_is_torchs_to_the_last_bit_and_shares_its_state():
    start = torch.randn(50, generator=torch.Generator().manual_seed(0))
    made = []
    for kind, again in ((torch.optim.AdamW, Adam), (Adam, torch.optim.AdamW)):
        one, two = (torch.nn.Parameter(start.clone()) for _ in range(2))
        options = {"lr": 0.0, "betas": (0.9, 0.99), "eps": 1e-5, "weight_decay": 0.01, "fused": True}
        groups = lambda: [{"params": [one], "lr": 1e-2}, {"params": [two], "lr": 3e-2}]  # noqa: B023, E731
        optimizer = kind(groups(), **options)
        for step in range(6):
            if step == 3:
                saved = optimizer.state_dict()
                optimizer = again(groups(), **options)
                optimizer.load_state_dict(saved)
            one.grad = torch.sin(start * (step + 1))
            two.grad = torch.cos(start * (step + 1)) if step != 1 else None
            optimizer.step()
        made.append((one.detach(), two.detach()))
    assert torch.equal(made[0][0], made[1][0]) and torch.equal(made[0][1], made[1][1])
    assert not torch.equal(made[0][0], start)


# -- what is forbidden, and several choices at once ------------------------------------------------------------------------


def test_a_masked_softmax_by_hand():
    """Logits (0, ln 3, 5) with the last forbidden: p = (1/4, 3/4, 0), H = 2 ln 2 - 3/4 ln 3; the gradient of log p of the second
    is (-1/4, 1/4, 0), that of H is -p (ln p + H) = (-1/4 (H - ln 4), -3/4 (H + ln 3/4), 0)."""
    logits = np.array([[0.0, math.log(3), 5.0]])
    forbid(logits, np.array([[True, True, False]]))
    found = Categorical(logits, np.array([1]))
    entropy = 2 * math.log(2) - 0.75 * math.log(3)
    np.testing.assert_allclose(found.chances, [[0.25, 0.75, 0.0]], atol=1e-12)
    assert found.logp[0] == pytest.approx(math.log(0.75)) and found.entropy[0] == pytest.approx(entropy)
    np.testing.assert_allclose(found.grad(np.ones(1), None), [[-0.25, 0.25, 0.0]], atol=1e-12)
    by_hand = [-0.25 * (entropy - math.log(4)), -0.75 * (entropy + math.log(0.75)), 0.0]
    np.testing.assert_allclose(found.grad(None, np.ones(1)), [by_hand], atol=1e-12)


def random_choices(components: tuple[int, ...], rows: int = 50) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, masks that leave something in every component, and ids that they allow."""
    random = torch.Generator().manual_seed(4)
    logits = 3 * torch.randn(rows, sum(components), generator=random, dtype=torch.float64)
    mask = torch.rand(rows, sum(components), generator=random) < 0.6
    ids = torch.stack([torch.randint(0, count, (rows,), generator=random) for count in components], -1)
    starts = torch.tensor([0, *components[:-1]]).cumsum(0)
    return logits, mask.scatter(1, ids + starts, True), ids


@pytest.mark.parametrize("components", [(5,), (3, 2, 4), (1, 2)], ids=str)
def test_masked_choices_are_those_of_torch_with_minus_infinity(components: tuple[int, ...]):
    logits, mask, ids = random_choices(components)
    mine = logits.numpy().copy()
    forbid(mine, mask.numpy())
    found = actions_at(mine, None, components if len(components) > 1 else (), (ids if len(components) > 1 else ids[:, 0]).numpy())
    logits.requires_grad_(True)
    each = [torch.distributions.Categorical(logits=part) for part in logits.masked_fill(~mask, -torch.inf).split(components, -1)]
    logp = torch.stack([one.log_prob(taken) for one, taken in zip(each, ids.unbind(-1), strict=True)]).sum(0)
    entropy = torch.stack([one.entropy() for one in each]).sum(0)
    np.testing.assert_allclose(found.logp, logp.detach(), atol=1e-12)
    np.testing.assert_allclose(found.entropy, entropy.detach(), atol=1e-12)
    weights = torch.linspace(-1, 1, len(logp), dtype=torch.float64)
    (weights * logp + weights.flip(0) * entropy).sum().backward()
    mine_grad = found.grad(weights.numpy(), weights.flip(0).numpy())
    np.testing.assert_allclose(mine_grad, logits.grad, atol=1e-12)
    assert not mine_grad[~mask.numpy()].any()


@pytest.mark.parametrize("plain", [False, True])
def test_policies_of_masked_components_learn_with_the_gradients_of_the_function(plain: bool):
    policy = MLPPolicy(3, 9, False, hidden=(5,), components=(3, 2, 4), seed=1).double()
    policy.plain = plain
    _, mask, ids = random_choices((3, 2, 4), 6)
    seen = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0))
    ones = torch.ones(3, 2)
    rows = Trajectories(sampled=ones, reward=torch.zeros(3), group=torch.arange(3), task=torch.arange(3), behavior=View(ones),
                        action=ids.view(3, 2, 3), inputs=ControlInputs(seen, mask.view(3, 2, 9)))  # fmt: skip
    look = lambda *flats: tuple(policy.evaluate(rows, frozenset({"entropy"})).columns().values())  # noqa: E731
    assert torch.autograd.gradcheck(look, tuple(policy.flat.values()))
    assert look()[0].isfinite().all()


def test_an_action_of_components_is_drawn_as_often_as_its_parts_allow():
    policy = MLPPolicy(1, 5, False, components=(2, 3))
    policy.actor[-1].weight.zero_()
    policy.actor[-1].bias.copy_(torch.tensor([0.2, 0.8, 0.5, 0.3, 0.2]).log())
    noise = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0))
    acted = policy.act(torch.zeros(20_000, 1), noise)
    share = torch.bincount(3 * acted.action[:, 0] + acted.action[:, 1], minlength=6) / 20_000
    torch.testing.assert_close(share, torch.tensor([0.1, 0.06, 0.04, 0.4, 0.24, 0.16]), atol=0.015, rtol=0)
    torch.testing.assert_close(acted.logp, share.new_tensor([0.1, 0.06, 0.04, 0.4, 0.24, 0.16]).log()[
        3 * acted.action[:, 0] + acted.action[:, 1]], atol=1e-5, rtol=0)  # fmt: skip
    assert policy.act(torch.zeros(1, 1), noise[:1], greedy=True).action.tolist() == [[1, 0]]


def test_components_survive_a_file(tmp_path: Path):
    policy = MLPPolicy(3, 9, False, components=(3, 2, 4), seed=1)
    policy.save(tmp_path)
    found = MLPPolicy.from_folder(tmp_path)
    assert found.sizes == policy.sizes and found.sizes.components == (3, 2, 4)
    MLPPolicy(3, 9, False).save(tmp_path)
    assert "components" not in (tmp_path / "policy.json").read_text()
    with pytest.raises(UserError, match="must be the same"):
        policy.load(tmp_path)
