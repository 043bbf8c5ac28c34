"""Presets: settings for well-known environments, as others have tuned them.

``rl-zoo`` has PPO's settings of rl-baselines3-zoo (``hyperparams/ppo.yml`` as of April 2026) in its own words, and `Preset` turns
them into ours. What its runs have and ours do not: state-dependent exploration (``use_sde``, in Pendulum and
MountainCarContinuous) and weights that do not begin orthogonal (``ortho_init=False``, in some of MuJoCo's).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from upslope.errors import UserError, did_you_mean
from upslope.objective.advantage import GAE
from upslope.objective.models.value import ValueFunction
from upslope.objective.regularize import EntropyBonus
from upslope.objective.surrogate import PessimisticClip
from upslope.plain_data import JsonDict
from upslope.tasks.kinds import kind_of
from upslope.types import Method

RL_ZOO = "rl-zoo"
PRESETS = (RL_ZOO,)
CHECKPOINTS = 10
"""In a run: each of them begins all episodes anew, so they must be rare where a rollout is shorter than an episode."""


@dataclass(frozen=True)
class Preset:
    """PPO's settings for one environment, under the names and with the defaults of Stable-Baselines3 and its zoo."""

    n_timesteps: float
    n_envs: int = 1
    n_steps: int = 2048
    batch_size: int = 64
    n_epochs: int = 10
    gamma: float = 0.99
    gae_lambda: float = 0.95
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    clip_range: float = 0.2
    learning_rate: float = 3e-4
    linear_lr: bool = False
    """The learning rate falls to 0 over the run, else it is constant; the same for the clip range."""
    linear_clip: bool = False
    normalize: bool = False
    net_arch: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    log_std_init: float = 0.0
    left_out: str = ""
    """What the zoo's own runs have besides."""

    @property
    def steps(self) -> int:
        return math.ceil(self.n_timesteps / (self.n_envs * self.n_steps))

    def settings(self) -> JsonDict:
        """As fields of `Settings`."""
        return {
            "steps": self.steps,
            "envs": self.n_envs,
            "horizon": self.n_steps,
            "minibatch": self.batch_size,
            "passes": self.n_epochs,
            "lr": self.learning_rate,
            "schedule": "linear" if self.linear_lr else "constant",
            "warmup": 0,
            "lr_floor": 0.0,
            "grad_clip": self.max_grad_norm,
            "normalise_observations": self.normalize,
            "normalise_rewards": self.normalize,
            "checkpoint_every": max(10, math.ceil(self.steps / CHECKPOINTS)),
        }

    def knobs(self) -> JsonDict:
        """As knobs of ``ppo``."""
        found: JsonDict = {
            "advantage.gamma": self.gamma,
            "advantage.lam": self.gae_lambda,
            "regularize.weight": self.ent_coef,
            "models.value.weight": 2 * self.vf_coef,  # its squared error has no half
            "surrogate.low": self.clip_range,
            "surrogate.high": self.clip_range,
            "policy.hidden": self.net_arch,
            "policy.activation": self.activation,
            "policy.log_std": self.log_std_init,
        }
        return found | ({"controller": f"LinearSchedule(start={self.clip_range}, end=0.0)"} if self.linear_clip else {})

    def __str__(self) -> str:
        plain = Preset(self.n_timesteps)
        own = [f.name for f in fields(self) if f.name != "left_out" and getattr(self, f.name) != getattr(plain, f.name)]
        return ", ".join(f"{name} {_shown(getattr(self, name))}" for name in ("n_timesteps", *own))


_WIDE: JsonDict = dict(net_arch=(256, 256), activation="relu", log_std_init=-2.0)
_SDE, _INIT = "state-dependent exploration (gSDE)", "an initialisation that is not orthogonal"
ZOO: Mapping[str, Preset] = {
    "CartPole": Preset(
        1e5, 8, 32, batch_size=256, n_epochs=20, gamma=0.98, gae_lambda=0.8, learning_rate=1e-3, linear_lr=True, linear_clip=True
    ),
    "Acrobot": Preset(1e6, 16, 256, n_epochs=4, gae_lambda=0.94, normalize=True),
    "Pendulum": Preset(1e5, 4, 1024, gamma=0.9, learning_rate=1e-3, left_out=_SDE),
    "MountainCarContinuous": Preset(
        2e4, 1, 8, batch_size=256, gamma=0.9999, gae_lambda=0.9, ent_coef=0.00429, vf_coef=0.19, max_grad_norm=5.0, clip_range=0.1,
        learning_rate=7.77e-5, normalize=True, log_std_init=-3.29, left_out=f"{_SDE} and {_INIT}",
    ),
    "LunarLander": Preset(1e6, 16, 1024, n_epochs=4, gamma=0.999, gae_lambda=0.98, ent_coef=0.01),
    "HalfCheetah": Preset(
        1e6, 1, 512, n_epochs=20, gamma=0.98, gae_lambda=0.92, ent_coef=0.000401762, vf_coef=0.58096, max_grad_norm=0.8,
        clip_range=0.1, learning_rate=2.0633e-5, normalize=True, left_out=_INIT, **_WIDE,
    ),
    "Hopper": Preset(
        1e6, 1, 512, batch_size=32, n_epochs=5, gamma=0.999, gae_lambda=0.99, ent_coef=0.00229519, vf_coef=0.835671,
        max_grad_norm=0.7, learning_rate=9.80828e-5, normalize=True, left_out=_INIT, **_WIDE,
    ),
    "Walker2d": Preset(
        1e6, 1, 512, batch_size=32, n_epochs=20, ent_coef=0.000585045, vf_coef=0.871923, max_grad_norm=1.0, clip_range=0.1,
        learning_rate=5.05041e-5, normalize=True,
    ),
    "Ant": Preset(1e6, normalize=True),
    "Swimmer": Preset(1e6, 4, 1024, batch_size=256, gamma=0.9999, gae_lambda=0.98, learning_rate=6e-4, normalize=True),
}  # fmt: skip
"""By the name of the environment without its version."""


@dataclass(frozen=True)
class Chosen:
    """What a preset asks for, with what was given in its place."""

    settings: JsonDict
    knobs: JsonDict
    told: str
    """For the run's first lines."""


def preset_for(name: str, task: str) -> Preset:
    """The preset of this name for a task.

    Raises:
        UserError: if there is no such preset, or none for this environment.
    """
    if name not in PRESETS:
        raise UserError(f"no preset named {name!r}.{did_you_mean(name, PRESETS)} There is {', '.join(PRESETS)}.")
    env_id = task.split(":")[1] if kind_of(task) == "gym" else ""
    family = env_id.rpartition("-v")[0] or env_id
    if family not in ZOO:
        near = did_you_mean(family, ZOO) if family else ""
        raise UserError(f"--preset {name} has no settings for {task!r}.{near} It has them for {', '.join(ZOO)}.")
    return ZOO[family]


def choose(name: str, method: Method, task: str, settings: Mapping[str, Any], knobs: Mapping[str, Any]) -> Chosen:
    """A preset's settings and knobs; what the user gives wins.

    Args:
        settings, knobs: as the user gave them.
    """
    preset = preset_for(name, task)
    _check_method(name, method)
    own = {path: value for path, value in preset.knobs().items() if not _overruled(path, knobs)}
    given = [*(f"--{key.replace('_', '-')}" for key in preset.settings() if key in settings), *knobs]
    told = f"preset {name} for {task}: {preset}."
    if given:
        told += f" Yours in their place or besides: {', '.join(given)}."
    if preset.left_out:
        told += f" The zoo's own runs have {preset.left_out}; these have not."
    return Chosen(preset.settings() | dict(settings), own | dict(knobs), told)


def _overruled(path: str, knobs: Mapping[str, Any]) -> bool:
    """Whether the user sets this knob, the part it is of, or what it moves."""
    if path == "controller":
        return any(given.split(".")[0] in ("controller", "surrogate") for given in knobs)
    return any(path == given or path.startswith(f"{given}.") for given in knobs)


def _check_method(name: str, method: Method) -> None:
    value = dict(method.models).get("value")
    held = (method.advantage, method.surrogate, value, *(method.regularize[:1] or (None,)))
    wanted = (GAE, PessimisticClip, ValueFunction, EntropyBonus)
    if not all(isinstance(part, kind) for part, kind in zip(held, wanted, strict=True)):
        raise UserError(f"--preset {name} has settings of ppo; {method.name} has other parts. Take ppo, or give settings yourself.")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "x".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
