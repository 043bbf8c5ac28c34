"""The networks of control policies: gradients written out by hand, weights as views of one vector, a lean Adam."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from upslope.errors import UserError
from upslope.learners.adam import Adam
from upslope.policies.control.mlp import ControlInputs, MLPPolicy
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
