"""The two sides of a row of updates on stored experience: this library's, and Stable-Baselines3's or d3rlpy's.

A unit of work is twenty updates on batches of 256 drawn from 50,000 stored decisions with Hopper's shapes (observations of 11
numbers, actions of 3), networks of 256 x 256; nobody acts. Drawing the batches is part of the work. That the updates are the same,
weight by weight, is what the tests of these methods show.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from sides import BORROWED, ONE_AND_TWO, Clock, Setting, Side, set_threads

UPDATES = 20
DECISIONS, LENGTH = 50_000, 1000


@dataclass(frozen=True)
class StoredWork:
    """Updates of one method."""

    method: str
    batch: int = 256


def columns() -> dict[str, np.ndarray]:
    """The same experience for everybody."""
    random = np.random.default_rng(0)
    made = {
        "observations": random.standard_normal((DECISIONS + 1, 11)).astype(np.float32),
        "actions": random.uniform(-0.99, 0.99, (DECISIONS, 3)).astype(np.float32),
        "rewards": random.standard_normal(DECISIONS).astype(np.float32),
    }
    made["terminals"] = np.zeros(DECISIONS, np.float32)
    made["timeouts"] = (np.arange(DECISIONS) % LENGTH == LENGTH - 1).astype(np.float32)
    return made


def run_ours(clock: Clock, given: StoredWork, setting: Setting) -> None:
    from upslope.experience import Episode, Episodes
    from upslope.experience.dataset import Dataset
    from upslope.learners.base import make_learner
    from upslope.methods import find
    from upslope.runtime.settings import Settings
    from upslope.runtime.threads import use_threads
    from upslope.setting_up import set_up
    from upslope.types import Ended

    use_threads(setting.threads)
    data = columns()
    starts = range(0, DECISIONS, LENGTH)
    episodes = [
        Episode(
            data["observations"][start : start + LENGTH + 1],
            data["actions"][start : start + LENGTH],
            data["rewards"][start : start + LENGTH],
            Ended.TRUNCATED,
        )
        for start in starts
    ]
    dataset = Dataset.of(Episodes.of(episodes), "shaped", env="gym:Hopper-v5")
    settings = Settings(steps=10**6, offline_steps=10**6, updates_per_step=UPDATES, minibatch=given.batch, lr=3e-4)
    made = set_up(find(given.method), "gym:Hopper-v5", "tiny", settings, dataset=dataset)
    learner = make_learner(made.method, made.policy, made.rollout, made.settings)
    learner.step(1)
    clock.ready()
    for step in itertools.count(2):
        clock.tick(updates=learner.step(step)["updates"])


def run_sb3(clock: Clock, given: StoredWork, setting: Setting) -> None:
    """SB3's `train`, on a replay buffer that was filled beforehand."""
    import gymnasium
    import stable_baselines3 as sb3

    set_threads(setting)
    make = {"sac": sb3.SAC, "td3": sb3.TD3}[given.method]
    model = make(
        "MlpPolicy", gymnasium.make("Hopper-v5"), batch_size=given.batch, learning_rate=3e-4, buffer_size=DECISIONS,
        policy_kwargs={"net_arch": [256, 256]}, device="cpu", seed=0,
    )  # fmt: skip
    model._setup_learn(10**6)
    data = columns()
    for row in range(DECISIONS):
        seen, following = data["observations"][row], data["observations"][row + 1]
        model.replay_buffer.add(seen, following, data["actions"][row], data["rewards"][row], np.zeros(1), [{}])
    model.train(UPDATES, given.batch)
    clock.ready()
    while True:
        model.train(UPDATES, given.batch)
        clock.tick(updates=UPDATES)


def run_d3rlpy(clock: Clock, given: StoredWork, setting: Setting) -> None:
    """d3rlpy's `update` on batches of its own sampler."""
    import d3rlpy

    set_threads(setting)
    data = columns()
    dataset = d3rlpy.dataset.MDPDataset(
        data["observations"][:-1], data["actions"], data["rewards"][:, None], data["terminals"], data["timeouts"]
    )
    config: Any = {
        "td3-bc": d3rlpy.algos.TD3PlusBCConfig(batch_size=given.batch),
        "iql": d3rlpy.algos.IQLConfig(batch_size=given.batch),
    }[given.method]
    algo = config.create(device=False)
    algo.build_with_dataset(dataset)

    def updates() -> None:
        for _ in range(UPDATES):
            algo.update(dataset.sample_transition_batch(given.batch))

    updates()
    clock.ready()
    while True:
        updates()
        clock.tick(updates=UPDATES)


OURS = Side("upslope", run_ours)
SB3 = Side("Stable-Baselines3 2.9", run_sb3, (*ONE_AND_TWO, *BORROWED), package="stable_baselines3")
D3RLPY = Side("d3rlpy 2.8", run_d3rlpy, (*ONE_AND_TWO, *BORROWED), package="d3rlpy")
