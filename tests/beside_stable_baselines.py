"""Steps of PPO, ours and those of Stable-Baselines3, from the same weights, with the same actions and order of minibatches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor

from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.methods.control.presets import Preset
from upslope.runtime.seeding import generator, mix
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.types import Trajectories

SEED, STEPS = 3, 2
PARTS = {"actor": ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"),
         "critic": ("mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net")}  # fmt: skip


IMAGE_PARTS = {
    **{f"encoder.module.convolutions.{ours}": f"features_extractor.cnn.{theirs}" for ours, theirs in ((0, 0), (1, 2), (2, 4))},
    "encoder.module.last": "features_extractor.linear.0",
    **{f"stacks.{stack}.{place}": f"mlp_extractor.{stack}_net.{place}" for stack in ("policy", "value") for place in (0, 2)},
    "stacks.policy.4": "action_net", "stacks.value.4": "value_net",
}  # fmt: skip
"""Of policies that look at images: where Stable-Baselines3 has each layer."""


class Step(NamedTuple):
    """A rollout as it was learned from (columns ``[envs, horizon]``), the gradient norms of its updates, the weights after it."""

    columns: dict[str, Tensor]
    norms: list[float]
    weights: dict[str, Tensor]


def their_name(name: str) -> str:
    layer, _, last = name.rpartition(".")
    if layer in IMAGE_PARTS:
        return f"{IMAGE_PARTS[layer]}.{last}"
    part, _, rest = name.partition(".")
    position, _, kind = rest.partition(".")
    return f"{PARTS[part][int(position)]}.{kind}" if rest else name


def copied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}


def our_steps(
    preset: Preset, env: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Tensor], list[Step], list[Trajectories]]:
    """The first weights, the steps and their rows."""
    settings = Settings(**preset.settings() | dict(seed=SEED, steps=STEPS, threads=1))
    made = set_up(find("ppo"), f"gym:{env}", "tiny", settings, knobs=preset.knobs())
    learner, first = PolicyGradient(made.method, made.policy, made.rollout, made.settings), copied(made.policy.weights())
    apply, norms, steps, rows = learner.optimizer_step.apply, [], [], []
    monkeypatch.setattr(learner.optimizer_step, "apply", lambda norm, sums: norms.append(norm) or apply(norm, sums))
    for step in range(1, STEPS + 1):
        norms.clear()
        learner.step(step)
        found = learner.last
        columns = dict(observation=found.inputs.observation, value=found.proximal.value, logp=found.proximal.logp,
                       advantage=found.advantage, returns=found.signal["returns"])  # fmt: skip
        steps.append(Step(columns, list(norms), copied(made.policy.weights())))
        rows.append(found)
    made.rollout.close()
    return first, steps, rows


class Watch(BaseCallback):
    """Writes down each rollout and, when the next begins or the last is learned from, what became of the weights."""

    def __init__(self, names: list[str], norms: list[float]) -> None:
        super().__init__()
        self.names, self.norms, self.steps, self.columns = names, norms, [], None

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.columns is not None:
            own = dict(self.model.policy.named_parameters())
            self.steps.append(Step(self.columns, list(self.norms), copied({name: own[their_name(name)] for name in self.names})))
        self.norms.clear()

    def _on_rollout_end(self) -> None:
        buffer: Any = self.model.rollout_buffer
        columns = dict(observation=buffer.observations, value=buffer.values, logp=buffer.log_probs, advantage=buffer.advantages,
                       returns=buffer.returns)  # fmt: skip
        self.columns = {name: torch.from_numpy(column.swapaxes(0, 1).copy()) for name, column in columns.items()}

    _on_training_end = _on_rollout_start


def their_steps(
    preset: Preset, env: str, first: dict[str, Tensor], rows: list[Trajectories], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[Step]:
    """The same steps of Stable-Baselines3. Its own are the environments' course, values, advantages, losses and updates."""
    envs = make_vec_env(env, preset.n_envs)
    model = PPO(
        options.pop("policy", "MlpPolicy"), envs, n_steps=preset.n_steps, batch_size=preset.batch_size, n_epochs=preset.n_epochs,
        gamma=preset.gamma, gae_lambda=preset.gae_lambda, ent_coef=preset.ent_coef, vf_coef=preset.vf_coef,
        max_grad_norm=preset.max_grad_norm, clip_range=preset.clip_range, learning_rate=preset.learning_rate, device="cpu",
        **options,
    )  # fmt: skip
    own = dict(model.policy.named_parameters())
    assert sorted(map(their_name, first)) == sorted(own)
    with torch.no_grad():
        for name, weight in first.items():
            own[their_name(name)].copy_(weight)
    envs._seeds = [mix(SEED, "reset", 1, number) >> 32 for number in range(preset.n_envs)]
    actions = iter([action for found in rows for action in found.action.transpose(0, 1)])
    monkeypatch.setattr(type(model.policy.action_dist), "sample", lambda self: next(actions))
    orders = iter([generator(SEED, "order", 1 + step, number) for step in range(STEPS) for number in range(preset.n_epochs)])
    monkeypatch.setattr(np.random, "permutation", lambda count: torch.randperm(count, generator=next(orders)).numpy())
    norms: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_

    def watched_clip(*given: Any) -> Tensor:
        norm = clip(*given)
        norms.append(float(norm))
        return norm

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", watched_clip)
    watch = Watch(list(first), norms)
    model.learn(STEPS * preset.n_envs * preset.n_steps, watch, log_interval=None)
    assert next(actions, None) is None and next(orders, None) is None
    return watch.steps
