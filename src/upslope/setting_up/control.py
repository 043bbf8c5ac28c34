"""Components of control: an environment, a small network that acts in it, and where its rows come from."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from upslope.errors import Remark, UserError
from upslope.experience.checking import check_dataset
from upslope.learners.base import Learner
from upslope.learners.policy_gradient import POLICY_COLUMNS
from upslope.objective import estimator
from upslope.plain_data import JsonDict, Knobs
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.seeding import mix
from upslope.runtime.settings import STORED_EXPERIENCE, Device, Settings
from upslope.runtime.statistics import bootstrap_interval
from upslope.setting_up.base import Components, Progress, pick_device, settled_method
from upslope.tasks.judging import load_test_task
from upslope.types import Learned, Method, Network, Solved

if TYPE_CHECKING:
    from upslope.experience.dataset import Dataset
    from upslope.policies.control.own_module import OwnModule
    from upslope.tasks.gym import GymTask

WATCHED_EPISODE = 7
"""Seed of the episode that is kept at each evaluation."""


class ControlComponents(Components):
    """A gymnasium environment, acted in by a small network."""

    score_name = "mean return"

    def __init__(
        self,
        method: Method,
        task: GymTask,
        settings: Settings,
        knobs: Knobs,
        for_training: bool = True,
        dataset: Dataset | None = None,
        own_module: OwnModule | None = None,
    ):
        self.own_module = own_module
        self.task, self.test_task, self.dataset = task, load_test_task(settings.test_task, task), dataset
        for remark in set(self.test_task.remarks) - set(task.remarks) if for_training else ():
            warnings.warn(Remark(remark), stacklevel=2)
        if dataset is not None:
            check_dataset(dataset, task)
        if settings.engine != "torch":
            raise UserError(f"--engine {settings.engine} continues text; {task.name} is an environment. Leave it out.")
        stored = method.learner == "actor-critic"
        device: Device = pick_device("cuda", "") if settings.device == "cuda" else "cpu"
        domains = domains_of(task)
        recipe = (dict(STORED_EXPERIENCE) if stored else {}) | method.settings_on(*domains)
        if task.layout.is_image:
            recipe |= _images_as_they_are(settings, task)
        asked = settings.offline_steps
        settings = dataclasses.replace(settings, device=device).resolved(
            "control", "mlp", continuous=task.continuous, recipe=recipe
        )  # fmt: skip
        if asked is None and method.offline and dataset is not None:
            settings = dataclasses.replace(settings, offline_steps=settings.steps)
        method = settled_method(method, domains, knobs)
        _check_data(method, settings, dataset, for_training)
        _check_pair(method, task)
        if settings.device == "cuda" and method.solved:
            raise UserError(f"--device cuda: models.{method.solved[0][0]} of {method.name} is asked on the CPU; leave it out.")
        for slot in ("curriculum", "rollout", "view") if stored else ("curriculum", "rollout", "data", "view"):
            if getattr(method, slot):
                raise UserError(f"{method.name} changes the {slot} of text tasks; {task.name} is an environment.")
        super().__init__(method, settings)
        if stored:
            self._remember(for_training)
        else:
            self._sample(for_training)

    def _sample(self, for_training: bool) -> None:
        """A policy that learns from rows just sampled."""
        from upslope.policies.control.mlp import MLPPolicy
        from upslope.rollout.environments import EnvRollout

        method, settings, task = self.method, self.settings, self.task
        estimator.check(method, POLICY_COLUMNS | EnvRollout.provides)
        self.policy = self._built_policy()
        if settings.device == "cuda" and isinstance(self.policy, MLPPolicy):
            raise UserError(
                f"--device cuda: the small networks of {method.name} are on the CPU, where they are faster; leave it out."
            )
        self.policy.plain = settings.plain
        self.give_heads()
        self.policy.to(settings.device)
        self.rollout = EnvRollout(
            task,
            self.policy,
            envs=settings.envs or 1 if for_training else 1,
            horizon=settings.horizon or 1,
            seed=settings.seed,
            gamma=getattr(method.advantage, "gamma", 0.99),
            normalise_observations=bool(settings.normalise_observations),
            normalise_rewards=bool(settings.normalise_rewards),
            workers=settings.env_workers if for_training else 1,
        )

    def _built_policy(self) -> Any:
        """The policy that the method's network builds, looking through the user's own module where there is one."""
        from upslope.policies.control.networks import MLP, Recurrent

        network, seed = cast(Network, self.method.policy), mix(self.settings.seed, "policy")
        if self.own_module is None:
            return network.build(self.task, seed)
        name = self.own_module.name
        if not isinstance(network, (MLP, Recurrent)):
            raise UserError(
                f"model={name} goes with methods whose policy is MLP or Recurrent; {self.method.name} has {type(network).__name__}."
                " Write an Encoder that builds it, in a file of your own, and give that as encoder."
            )
        return network.build(self.task, seed, self.own_module.built(self.task))

    def _remember(self, for_training: bool) -> None:
        """A policy of networks that learns from rows drawn out of what is stored."""
        from upslope.learners.actor_critic import check, drawn_data
        from upslope.policies.control.network_policy import NetworkPolicy
        from upslope.rollout.replay import ReplayRollout

        method, settings, task = self.method, self.settings, self.task
        check(method, ReplayRollout.provides)
        self.policy = self._built_policy()
        if not isinstance(self.policy, NetworkPolicy):
            raise UserError(f"{method.name} learns from stored experience, and policy={method.policy} is for rows just sampled. "
                            "Take Stochastic(), Deterministic() or GreedyChoice().")  # fmt: skip
        self.policy.plain = settings.plain
        models: list[tuple[str, Learned | Solved]] = [*method.learned, *method.solved]
        for name, model in models:
            self.policy.add_model(name, model, mix(settings.seed, "models"))
        self.policy.to(settings.device)
        steps = max((settings.steps or 0) - (settings.offline_steps or 0), 0)
        self.rollout = ReplayRollout(
            task,
            self.policy,
            drawn_data(method),
            method.acting,
            envs=settings.envs or 1,
            seed=settings.seed,
            planned_steps=steps * (settings.horizon or 1) * (settings.envs or 1),
            episodes=self.dataset.episodes if self.dataset is not None else None,
            normalise=bool(settings.normalise_observations),
            workers=settings.env_workers if for_training else 1,
            with_returns="signal.return_to_go" in method.needs(),
        )

    def keep_in(self, folder: RunFolder) -> None:
        """Experience is written as it comes."""
        if self.method.learner == "actor-critic":
            self.rollout.keep_in(folder.path / "experience")

    def warm_start(self, progress: Callable[[int, float], None]) -> None:
        """A controller starts from nothing."""

    def evaluate(self, progress: Progress | None = None) -> JsonDict:
        from upslope.rollout.environments import evaluate_control
        from upslope.rollout.evaluation import EVALUATION_SEED

        episodes = self.settings.eval_problems or 100

        def told(done: int) -> None:
            if progress is not None:
                progress(done, episodes)

        returns = evaluate_control(
            self.test_task, self.policy, self.rollout.state(), episodes=episodes, seed=EVALUATION_SEED, progress=told
        )
        low, high = bootstrap_interval(returns)
        return {"score": float(np.mean(returns)), "low": low, "high": high, "episodes": episodes, "spread": float(np.std(returns))}

    def record_step(self, folder: RunFolder, learner: Learner, step: int, seconds: float) -> None:
        """Nothing: single decisions of many environments tell little."""

    def record_evaluation(self, folder: RunFolder, step: int) -> None:
        """An episode, always from the same beginning."""
        from upslope.rollout.recorded_episode import play

        if self.settings.record == "none":
            return
        stored = self.method.learner == "actor-critic"
        gamma = self.rollout.data.gamma if stored else getattr(self.method.advantage, "gamma", 1.0)
        spread = 1.0 if stored or self.rollout.rewards is None else float(self.rollout.rewards.spread)
        played = play(
            self.test_task, self.policy, self.rollout.observations, WATCHED_EPISODE, gamma=gamma, reward_spread=spread
        )  # fmt: skip
        folder.write_episode(played.record(step))


def _check_pair(method: Method, task: GymTask) -> None:
    """Refuses a pair of networks where no number says which of them is meant."""
    found = next((path for path, part in method.parts() if getattr(part, "pair", False)), None)
    if found is not None and not task.is_pair:
        raise UserError(f"{found}.pair is for two tasks that take turns, and {task.name} is one. Make it with up.reset_free, or "
                        f"leave {found}.pair out.")  # fmt: skip


def domains_of(task: GymTask) -> tuple[str, ...]:
    """What a method's knobs go by: the kind of task, that of its actions, and whether it shows images."""
    images = ("control-images",) if task.layout.is_image else ()
    return ("control", f"control-{'continuous' if task.continuous else 'discrete'}", *images)


def _images_as_they_are(settings: Settings, task: GymTask) -> dict[str, object]:
    if settings.normalise_observations:
        raise UserError(
            f"normalise_observations=true: {task.name} shows images, which networks read as shares of 255. Leave it out."
        )
    return {"normalise_observations": False}


def _check_data(method: Method, settings: Settings, dataset: Dataset | None, for_training: bool) -> None:
    """Refuses a dataset that nobody would read, and methods that cannot do without one."""
    if not for_training:
        return
    if dataset is not None and method.learner != "actor-critic":
        raise UserError(f"--data goes with methods that learn from stored experience; {method.name} learns from what it samples. "
                        "Take bc, td3-bc, iql, cql or rlpd, or leave it out.")  # fmt: skip
    if dataset is not None:
        return
    if settings.offline_steps:
        raise UserError(f"--offline-steps is {settings.offline_steps}, and there is no dataset to learn from. Give --data.")
    if method.offline or any(getattr(part, "needs_dataset", False) for _, part in method.parts()):
        raise UserError(f"{method.name} learns from a dataset. Give it one: --data NAME, as 'upslope data make' makes it.")
