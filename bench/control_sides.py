"""The two sides of a PPO row: this library's learner, and Stable-Baselines3's ``PPO``; and their returns after a longer run.

Both have 8 environments, rollouts of 2048 steps in each, 10 epochs in minibatches of 64 decisions, Adam at 3e-4, clip 0.2, GAE
(0.99, 0.95), value weight 0.5, gradient norm 0.5, no entropy bonus, networks of 64 x 64 tanh units. Where actions are continuous
both normalise observations and rewards by running statistics, without which neither learns much there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from sides import BORROWED, ONE_AND_TWO, Clock, Setting, Side, scratch_folder, set_threads

SB3_SETTINGS = (*ONE_AND_TWO, Setting("1 thread, environments in processes", 1, {"processes": True}), *BORROWED)
EVALUATION_SEED = 90_001


@dataclass(frozen=True)
class ControlWork:
    """An iteration of PPO: a rollout and all its updates."""

    task: str
    normalise: bool
    envs: int = 8
    horizon: int = 2048
    epochs: int = 10
    minibatch: int = 64
    seed: int = 0

    @property
    def steps(self) -> int:
        """Environment steps of an iteration."""
        return self.envs * self.horizon


def make_ours(given: ControlWork) -> Any:
    """The bench of a run (task, policy, rollout) with its learner."""
    from upslope.learners.policy_gradient import PolicyGradient
    from upslope.methods import find
    from upslope.runtime.settings import Settings
    from upslope.setting_up import set_up

    settings = Settings(
        steps=10**6,
        seed=given.seed,
        lr=3e-4,
        schedule="constant",
        envs=given.envs,
        horizon=given.horizon,
        passes=given.epochs,
        minibatch=given.minibatch,
        normalise_observations=given.normalise,
        normalise_rewards=given.normalise,
    )
    bench = set_up(find("ppo"), f"gym:{given.task}", "", settings, knobs={"regularize.weight": 0.0})
    return bench, PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings)


def run_ours(clock: Clock, given: ControlWork, setting: Setting) -> None:
    from upslope.runtime.threads import use_threads

    use_threads(setting.threads)
    _, learner = make_ours(given)
    stepped = 0.0
    clock.ready()
    for step in itertools.count(1):
        metrics = learner.step(step)
        clock.tick(env_steps=metrics["env_steps"] - stepped, updates=metrics["updates"])
        stepped = metrics["env_steps"]


def make_sb3(given: ControlWork, processes: bool = False) -> Any:
    """A PPO of Stable-Baselines3 with the same settings."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    kind = SubprocVecEnv if processes else DummyVecEnv
    envs: Any = make_vec_env(given.task, given.envs, seed=given.seed, vec_env_cls=kind)
    if given.normalise:
        envs = VecNormalize(envs, gamma=0.99)
    return PPO(
        "MlpPolicy",
        envs,
        n_steps=given.horizon,
        n_epochs=given.epochs,
        batch_size=given.minibatch,
        learning_rate=3e-4,
        ent_coef=0.0,
        seed=given.seed,
        device="cpu",
        verbose=0,
    )


def run_sb3(clock: Clock, given: ControlWork, setting: Setting) -> None:
    """Iterations of SB3's `learn`, from the beginning of one rollout to that of the next."""
    from stable_baselines3.common.callbacks import BaseCallback

    set_threads(setting)

    class Ticking(BaseCallback):
        steps, updates = 0, 0

        def _on_rollout_start(self) -> None:
            if not self.num_timesteps:
                return clock.ready()
            # `_n_updates` counts epochs; each goes through the whole rollout.
            epochs = self.model._n_updates - self.updates
            batches = -(-given.steps // self.model.batch_size)
            clock.tick(env_steps=self.num_timesteps - self.steps, updates=epochs * batches)
            self.steps, self.updates = self.num_timesteps, self.model._n_updates

        def _on_step(self) -> bool:
            return True

    model = make_sb3(given, bool(setting.options.get("processes")))
    try:
        model.learn(10**9, callback=Ticking(), log_interval=None)
    finally:
        model.get_env().close()


OURS = Side("upslope", run_ours)
SB3 = Side("Stable-Baselines3 2.9 PPO", run_sb3, SB3_SETTINGS, package="stable_baselines3")


# -- returns after a longer run --------------------------------------------------------------------------------------------


def return_ours(given: ControlWork, iterations: int, episodes: int) -> float:
    """Mean return of greedy episodes after so many iterations."""
    from upslope.rollout.environments import evaluate_control
    from upslope.runtime.threads import use_threads

    use_threads(1)
    bench, learner = make_ours(given)
    for step in range(1, iterations + 1):
        learner.step(step)
    returns = evaluate_control(bench.task, bench.policy, bench.rollout.state(), episodes=episodes, seed=EVALUATION_SEED)
    return sum(returns) / len(returns)


def return_sb3(given: ControlWork, iterations: int, episodes: int) -> float:
    """The same of Stable-Baselines3, with its statistics frozen and raw rewards."""
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    with scratch_folder():
        model = make_sb3(given)
        model.learn(iterations * given.steps, log_interval=None)
    envs: Any = make_vec_env(given.task, 10, seed=EVALUATION_SEED)
    if given.normalise:
        statistics = model.get_vec_normalize_env().obs_rms
        envs = VecNormalize(envs, training=False, norm_reward=False)
        envs.obs_rms = statistics
    returns, _ = evaluate_policy(model, envs, n_eval_episodes=episodes, deterministic=True)
    return float(returns)
