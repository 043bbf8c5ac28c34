"""Updates a second of methods of stored experience on a GPU, beside Stable-Baselines3's TD3 there.

    python bench/gpu_updates.py --out bench/results/gpu_updates.json

Networks of 256 x 256, batches of 256, observations of 11 numbers and actions of 3, as Hopper has them; the environment is never
stepped. Ours is measured with recorded blocks of updates and without; before the clock starts, a block's losses must be those of
the CPU to rounding.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from upslope.experience import Episode, Episodes
from upslope.experience.dataset import Dataset
from upslope.learners.base import make_learner
from upslope.methods import find
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.types import Ended

ID = "HopperShaped-v0"
EPISODES, LENGTH = 100, 1000


class Shaped(gymnasium.Env):
    """Hopper's spaces, and nothing behind them."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (11,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(11, np.float32), {}

    def step(self, action: Any) -> Any:
        return self.np_random.standard_normal(11).astype(np.float32), 1.0, False, False, {}


gymnasium.register(ID, entry_point=Shaped, max_episode_steps=LENGTH)


def dataset() -> Dataset:
    random = np.random.default_rng(0)

    def episode() -> Episode:
        seen = random.standard_normal((LENGTH + 1, 11)).astype(np.float32)
        acted = random.uniform(-1, 1, (LENGTH, 3)).astype(np.float32)
        return Episode(seen, acted, random.standard_normal(LENGTH).astype(np.float32), Ended.TRUNCATED)

    return Dataset.of(Episodes.of([episode() for _ in range(EPISODES)]), "shaped", env=f"gym:{ID}")


def learner(method: str, device: str, updates: int, data: Dataset) -> Any:
    settings = Settings(steps=10**6, offline_steps=10**6, updates_per_step=updates, device=device, seed=1)
    made = set_up(find(method), f"gym:{ID}", "tiny", settings, dataset=data)
    return make_learner(made.method, made.policy, made.rollout, made.settings)


def agreement(method: str, data: Dataset) -> float:
    """Largest relative difference of the losses of sixty updates, in three steps, from those of the CPU."""
    there, here = learner(method, "cuda", 20, data), learner(method, "cpu", 20, data)
    worst = 0.0
    for step in (1, 2, 3):  # the first finds out what is asked for, the second is recorded, the third played again
        ours, theirs = there.step(step), here.step(step)
        losses = [key for key in theirs if key.endswith("loss")]
        worst = max(worst, *(abs(ours[key] - theirs[key]) / (abs(theirs[key]) + 1e-6) for key in losses))
    return worst


def speed(method: str, data: Dataset, recorded: bool, seconds: float = 4.0) -> float:
    """Updates a second."""
    found = learner(method, "cuda", 400, data)
    found.graphed.records = recorded
    step = 1
    for _ in range(3):
        found.step(step)
        step += 1
    torch.cuda.synchronize()
    began, made = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        made += int(found.step(step)["updates"])
        step += 1
    torch.cuda.synchronize()
    return made / (time.perf_counter() - began)


def speed_of_sb3(seconds: float = 4.0) -> float | None:
    """Updates a second of Stable-Baselines3's TD3 on the same GPU, or nothing where it is not installed."""
    try:
        from stable_baselines3 import TD3
    except ImportError:
        return None
    model = TD3("MlpPolicy", gymnasium.make(ID), batch_size=256, policy_kwargs={"net_arch": [256, 256]}, device="cuda", seed=0)
    model._setup_learn(2000)
    random = np.random.default_rng(0)
    for _ in range(2000):
        seen, following = random.standard_normal((2, 1, 11)).astype(np.float32)
        model.replay_buffer.add(seen, following, random.uniform(-1, 1, (1, 3)).astype(np.float32), np.ones(1), np.zeros(1), [{}])
    model.train(50, 256)
    torch.cuda.synchronize()
    began, made = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        model.train(50, 256)
        made += 50
    torch.cuda.synchronize()
    return made / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="")
    parser.add_argument("--methods", default="td3-bc,td3,iql,sac")
    flags = parser.parse_args()
    data, found = dataset(), {}
    for method in flags.methods.split(","):
        row = {"agreement": agreement(method, data)}
        row |= {"recorded": speed(method, data, True), "plain": speed(method, data, False)}
        found[method] = row
        print(method, row, flush=True)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "updates_per_second": found}
    result |= {"stable_baselines3_td3": speed_of_sb3()}
    print(json.dumps(result, indent=1))
    if flags.out:
        Path(flags.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
