"""Returns with rl-baselines3-zoo's settings, ours beside Stable-Baselines3 at equal steps: ``python bench/rl_zoo.py CartPole-v1``.

Both sides get the same `Preset`, and both without what ours does not have (state-dependent exploration, ``ortho_init=False``):
figures of the zoo's own table are therefore not comparable. A return is the mean over 100 greedy episodes after the last step, with
raw rewards and frozen statistics. ``--share 0.2`` stops after a fifth of the zoo's steps; where a learning rate or a clip falls
linearly, it then falls over that fifth. Results are kept by environment in ``bench/results/rl_zoo.json``, and ``--go-on``
adds the seeds that are missing.

Both sides play the same 100 episodes, in all seeds. That matters: a mean over 100 episodes of Pendulum moves by 13 from one draw of
their first states to the next, which the spread over seeds cannot show because all of them share the draw. On two draws one and the
same policy had -232 and -189.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
from sides import scratch_folder

from upslope.methods.control.presets import RL_ZOO, Preset, choose, preset_for

RESULTS = Path(__file__).parent / "results" / "rl_zoo.json"
EPISODES, EVALUATION_SEED = 100, 90_001


def ours(preset: Preset, env_id: str, seed: int) -> float:
    """Mean greedy return after a run of this library."""
    from upslope.learners.policy_gradient import PolicyGradient
    from upslope.methods import find
    from upslope.rollout.deployed import DeployedPolicy
    from upslope.runtime.settings import Settings
    from upslope.runtime.threads import use_threads
    from upslope.setting_up import set_up

    use_threads(1)
    given = {"seed": seed, "steps": preset.steps, "checkpoint_every": preset.steps}
    chosen = choose(RL_ZOO, find("ppo"), f"gym:{env_id}", given, {})
    made = set_up(find("ppo"), f"gym:{env_id}", "tiny", Settings(**chosen.settings), knobs=chosen.knobs)
    learner = PolicyGradient(made.method, made.policy, made.rollout, made.settings)
    for step in range(1, preset.steps + 1):
        learner.step(step)
    made.rollout.close()
    return mean_return(DeployedPolicy(made.task, made.policy, made.rollout.observations), env_id)


def theirs(preset: Preset, env_id: str, seed: int) -> float:
    """The same of Stable-Baselines3."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    envs: Any = make_vec_env(env_id, preset.n_envs, seed=seed)
    if preset.normalize:
        envs = VecNormalize(envs, gamma=preset.gamma)
    shape = list(preset.net_arch)
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[preset.activation]
    kwargs = dict(net_arch=dict(pi=shape, vf=shape), activation_fn=activation, log_std_init=preset.log_std_init)
    model = PPO(
        "MlpPolicy", envs, n_steps=preset.n_steps, batch_size=preset.batch_size, n_epochs=preset.n_epochs, gamma=preset.gamma,
        gae_lambda=preset.gae_lambda, ent_coef=preset.ent_coef, vf_coef=preset.vf_coef, max_grad_norm=preset.max_grad_norm,
        clip_range=_schedule(preset.clip_range, preset.linear_clip), policy_kwargs=kwargs, seed=seed, device="cpu", verbose=0,
        learning_rate=_schedule(preset.learning_rate, preset.linear_lr),
    )  # fmt: skip
    with scratch_folder():
        model.learn(preset.steps * preset.n_envs * preset.n_steps, log_interval=None)
    return mean_return(model, env_id, getattr(model.get_vec_normalize_env(), "obs_rms", None))


def mean_return(policy: Any, env_id: str, statistics_seen: Any = None) -> float:
    """Of greedy episodes, the same ones whoever plays them.

    Args:
        policy: By Stable-Baselines3's protocol.
        statistics_seen: Of observations, where the policy does not normalise them itself.
    """
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    envs: Any = make_vec_env(env_id, 10, seed=EVALUATION_SEED)
    if statistics_seen is not None:
        envs = VecNormalize(envs, training=False, norm_reward=False)
        envs.obs_rms = statistics_seen
    found, _ = evaluate_policy(policy, envs, n_eval_episodes=EPISODES, deterministic=True)
    return float(found)


def _schedule(value: float, linear: bool) -> float | Callable[[float], float]:
    return (lambda left: left * value) if linear else value


def measure(env_id: str, seeds: int, share: float, kept: dict[str, Any]) -> dict[str, Any]:
    """Both sides with several seeds; those that are kept of the same work are not run again."""
    whole = preset_for(RL_ZOO, f"gym:{env_id}")
    preset = dataclasses.replace(whole, n_timesteps=whole.n_timesteps * share)
    found: dict[str, Any] = {
        "preset": str(preset), "left_out": preset.left_out, "share": share, "episodes": EPISODES,
        "env_steps": preset.steps * preset.n_envs * preset.n_steps,
    }  # fmt: skip
    same = all(kept.get(key) == value for key, value in found.items())
    for side, run in {"ours": ours, "stable-baselines3": theirs}.items():
        before = kept.get(side, {}) if same else {}
        returns, seconds = list(before.get("seeds", [])), before.get("seconds", 0.0) * len(before.get("seeds", []))
        began = time.perf_counter()
        returns += [run(preset, env_id, seed) for seed in range(len(returns), seeds)]
        found[side] = {
            "mean": statistics.fmean(returns),
            "spread": statistics.stdev(returns) if len(returns) > 1 else 0.0,
            "seeds": returns,
            "seconds": (seconds + time.perf_counter() - began) / len(returns),
        }
        print(f"{env_id} {side}: {returns}, {found[side]['seconds']:.0f} s a run", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="+", metavar="ID")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the zoo's steps")
    parser.add_argument("--go-on", action="store_true", help="keep the seeds that were run, and run those that are missing")
    flags = parser.parse_args()
    kept: dict[str, Any] = {"row": "rl_zoo", "machine": machine.describe(), "versions": machine.versions()}
    if RESULTS.exists():
        kept |= json.loads(RESULTS.read_text())
    environments = kept.setdefault("environments", {})
    for env_id in flags.environments:
        words = f"python bench/rl_zoo.py {env_id} --seeds {flags.seeds}" + (f" --share {flags.share:g}" if flags.share != 1 else "")
        before = environments.get(env_id, {}) if flags.go_on else {}
        environments[env_id] = measure(env_id, flags.seeds, flags.share, before) | {"command": words}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
