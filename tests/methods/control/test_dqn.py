"""DQN beside Stable-Baselines3, double DQN beside torchrl, and both on a chain whose values are known."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from beside_off_policy import (
    ACTIONS,
    OBSERVATION,
    ROWS,
    GivenEnv,
    GivenNoise,
    GivenRows,
    OurUpdates,
    assert_bitwise_equal,
    assert_same_weights,
    image_task,
    layers_of,
    linears,
    mlp,
    our_policy,
    parameters_in_order,
    pieces,
    random_images,
    random_noise,
    random_rows,
    take_weights,
    their_agent,
    their_rows,
)
from image_environment import Beacon

import upslope as up
from upslope.methods import find

UPDATES = 3
NARROW = {"models.q.network.hidden": (16, 16), "models.q.lag_every": 2}
dqn, double_dqn = (find(name).with_knobs(NARROW) for name in ("dqn", "double-dqn"))


@pytest.mark.checks("oracle", "dqn", by="Stable-Baselines3")
@pytest.mark.parametrize("clip", [10.0, 0.05])
def test_updates_are_those_of_stable_baselines(clip: float, monkeypatch: pytest.MonkeyPatch):
    """They copy the target network between updates, by counting environment steps; here that is done by hand."""
    from stable_baselines3 import DQN

    batches = [random_rows(seed, continuous=False) for seed in range(UPDATES)]
    theirs = their_agent(DQN, batches, monkeypatch, continuous=False, max_grad_norm=clip, learning_rate=1e-3)
    policy = our_policy(dqn, continuous=False)
    take_weights(policy.networks["q"].stack, linears(theirs.q_net))
    take_weights(policy.lagged["q"].stack, linears(theirs.q_net))
    theirs.q_net_target.load_state_dict(theirs.q_net.state_dict())
    ours = OurUpdates(dqn, policy, lr=1e-3, grad_clip=clip)
    for rows in batches:
        found = ours(rows, GivenNoise({}))
        theirs.train(1, ROWS)
        if ours.done % 2 == 0:
            theirs.q_net_target.load_state_dict(theirs.q_net.state_dict())
        assert found["q_loss"] == pytest.approx(theirs.logger.name_to_value["train/loss"], abs=1e-10)
    assert_same_weights(policy.networks["q"].stack, linears(theirs.q_net), tolerance=1e-9)
    assert_same_weights(policy.lagged["q"].stack, linears(theirs.q_net_target), tolerance=1e-9)


@pytest.mark.checks("oracle", "dqn", by="Stable-Baselines3")
def test_updates_from_images_are_those_of_stable_baselines(monkeypatch: pytest.MonkeyPatch):
    """Their CnnPolicy with the paper's convolutions, its weights in ours."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.logger import configure

    method = find("dqn").for_domain("control-images").with_knobs({"models.q.lag_every": 2})
    shape = (4, 36, 36)
    env = GivenEnv(continuous=False)
    env.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    theirs = DQN("CnnPolicy", env, seed=0, device="cpu", learning_rate=1e-3, max_grad_norm=10.0, buffer_size=1)
    theirs.policy.double()
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda obs, *rest, **more: obs.double() / 255)
    theirs.set_logger(configure(None, []))
    batches = [random_images(random_rows(seed, continuous=False), seed, shape) for seed in range(UPDATES)]
    theirs.replay_buffer = GivenRows(batches)
    policy = our_policy(method, given=image_task(shape))

    def as_ours(network: torch.nn.Module) -> dict[str, torch.Tensor]:
        convolutions, last = network.features_extractor.cnn, network.features_extractor.linear[0]
        layers = {f"convolutions.{number}": convolutions[2 * number] for number in range(3)} | {"last": last}
        found = {f"encoder.{path}.{kind}": getattr(layer, kind).detach() for path, layer in layers.items()
                 for kind in ("weight", "bias")}  # fmt: skip
        return found | pieces([linears(network.q_net)])

    policy.load_weights({f"{kind}q.{name}": weight for kind in ("", "lagged.") for name, weight in as_ours(theirs.q_net).items()})
    theirs.q_net_target.load_state_dict(theirs.q_net.state_dict())
    ours = OurUpdates(method, policy, lr=1e-3, grad_clip=10.0)
    for rows in batches:
        found = ours(rows, GivenNoise({}))
        theirs.train(1, ROWS)
        if ours.done % 2 == 0:
            theirs.q_net_target.load_state_dict(theirs.q_net.state_dict())
        assert found["q_loss"] == pytest.approx(theirs.logger.name_to_value["train/loss"], abs=1e-9)
    own = policy.weights()
    for kind, network in (("", theirs.q_net), ("lagged.", theirs.q_net_target)):
        for name, weight in as_ours(network).items():
            torch.testing.assert_close(own[f"{kind}q.{name}"], weight, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_it_learns_what_an_image_shows(tmp_path: Path):
    run = up.train("dqn", Beacon, steps=2, envs=2, horizon=100, updates_per_step=100, lr=1e-3, eval_problems=10,
                   knobs={"acting.0.steps": 50}, out=tmp_path / "run")  # fmt: skip
    first, last = run.evaluations
    assert first["score"] < 4 and last["score"] == 8, "the square is on the side it goes to"
    again = up.load(run.path)
    assert again.predict(np.zeros((12, 12, 1), np.uint8), deterministic=True)[0].shape == ()


@pytest.mark.checks("oracle", "dqn", by="torchrl")
@pytest.mark.checks("oracle", "double-dqn", by="torchrl")
@pytest.mark.parametrize("double", [False, True])
def test_updates_are_those_of_torchrl(double: bool):
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    method = double_dqn if double else dqn
    network = mlp(OBSERVATION, ACTIONS, seed=3)
    actor = QValueActor(network, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, loss_function="smooth_l1", double_dqn=double, delay_value=True, action_space="categorical")
    loss.make_value_estimator(gamma=0.99)
    copies = SoftUpdate(loss, tau=1.0)
    optimizer = torch.optim.Adam(parameters_in_order(loss.value_network_params), lr=1e-3)
    policy = our_policy(method, continuous=False)
    take_weights(policy.networks["q"].stack, linears(network))
    take_weights(policy.lagged["q"].stack, linears(network))
    ours = OurUpdates(method, policy, lr=1e-3)
    for seed in range(UPDATES):
        rows = random_rows(seed, continuous=False)
        found = ours(rows, GivenNoise({}))
        theirs = loss(their_rows(rows))["loss"]
        optimizer.zero_grad()
        theirs.backward()
        optimizer.step()
        if ours.done % 2 == 0:
            copies.step()
        assert found["q_loss"] == pytest.approx(theirs.item(), abs=1e-10)
    assert_same_weights(policy.networks["q"].stack, layers_of(loss.value_network_params), tolerance=1e-9)


@pytest.mark.checks("identity", "double-dqn")
def test_double_is_plain_while_its_copy_is_the_critic_itself():
    """Whoever chooses and whoever values are then one."""
    ours, other = our_policy(double_dqn, continuous=False), our_policy(dqn, continuous=False)
    follows = {"models.q.lag_every": 1}
    left, right = OurUpdates(double_dqn.with_knobs(follows), ours, lr=1e-3), OurUpdates(dqn.with_knobs(follows), other, lr=1e-3)
    for policy in (ours, other):
        policy.lags["q"] = (1.0, 1)
    for seed in range(3):
        rows = random_rows(seed, continuous=False)
        left(rows, random_noise(seed))
        right(rows, random_noise(seed))
    assert_bitwise_equal(ours, other)


@pytest.mark.checks("identity", "dqn")
@pytest.mark.checks("identity", "double-dqn")
@pytest.mark.parametrize("double", [False, True])
def test_on_a_chain_it_finds_the_values_of_value_iteration(double: bool):
    """Five states in a row, left or right; the reward is at the right end. One-hot observations and a linear critic are a table."""
    states, gamma = 5, 0.9
    value = torch.zeros(states, 2, dtype=torch.float64)
    following = torch.tensor([[max(state - 1, 0), state + 1] for state in range(states)])
    for _ in range(200):
        best = torch.cat([value.amax(1), torch.zeros(1, dtype=torch.float64)])
        value = (following == states).double() + gamma * best[following]
    assert value[0].tolist() == pytest.approx([gamma**5, gamma**4])

    method = (double_dqn if double else dqn).with_knobs({"models.q.network.hidden": (64,), "models.q.lag_every": 25})
    policy = our_policy(method, continuous=False)
    rows = random_rows(0, continuous=False, rows=2 * states)
    state, action = torch.arange(states).repeat_interleave(2), torch.arange(2).repeat(states)
    code = torch.eye(states + 1, OBSERVATION, dtype=torch.float64)
    arrived = following[state, action]
    inputs = type(rows.inputs)(code[state].unsqueeze(1), code[arrived].unsqueeze(1))
    ended = (arrived == states).unsqueeze(1)
    rows = rows.replace(
        action=action.unsqueeze(1), step_reward=ended.double(), signal={"discount": gamma * (~ended).double()}, inputs=inputs
    )  # fmt: skip
    ours = OurUpdates(method, policy, lr=5e-3)
    for update in range(600):
        ours(rows, random_noise(update))
    found = policy.networks["q"].answer(inputs.observation, rows.action.unsqueeze(2), True).squeeze().view(states, 2)
    torch.testing.assert_close(found, value, rtol=0, atol=0.02)
