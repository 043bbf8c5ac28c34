"""Components of control: an environment, a small network that acts in it, and where its rows come from."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
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
from upslope.runtime.settings import STORED_EXPERIENCE, WHOLE_EPISODES, Device, Settings
from upslope.runtime.statistics import bootstrap_interval
from upslope.setting_up.base import Components, Progress, pick_device, settled_method
from upslope.sizes.estimate import Estimate, control_estimate
from upslope.tasks.judging import load_test_task
from upslope.types import Learned, Method, Network, RolloutPlan, Solved

if TYPE_CHECKING:
    from upslope.experience.dataset import Dataset
    from upslope.policies.control.own_module import OwnModule
    from upslope.tasks.gym import GymTask

ROW_NUMBERS = 64
"""Bytes of a decision beside what was observed: the action, its chance, values, rewards, ends."""
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
        method, settings = _settled(method, task, settings, knobs, dataset)
        _check_data(method, settings, dataset, for_training)
        _check_pair(method, task)
        if method.stages:
            raise UserError(f"{method.name} has stages, which learn from text; {task.name} is an environment. Leave them out: "
                            "--set stages=none.")  # fmt: skip
        if settings.device == "cuda" and method.solved:
            raise UserError(f"--device cuda: models.{method.solved[0][0]} of {method.name} is asked on the CPU; leave it out.")
        super().__init__(method, settings)
        if method.learner == "actor-critic":
            _refuse_slots(method, task, "curriculum", "rollout", "view")
            self._remember(for_training)
        elif method.rollout is not None:
            self._sample_episodes(method.rollout, for_training)
        else:
            _refuse_slots(method, task, "curriculum", "data", "view")
            self._sample(for_training)

    def _sample(self, for_training: bool) -> None:
        """A policy that learns from rows just sampled."""
        from upslope.rollout.environments import EnvRollout

        method, settings, task = self.method, self.settings, self.task
        estimator.check(method, POLICY_COLUMNS | EnvRollout.provides)
        self._policy_for_sampling()
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

    def _policy_for_sampling(self) -> None:
        """The policy, with the method's heads, on its device."""
        from upslope.policies.control.mlp import MLPPolicy

        self.policy = self._built_policy()
        if self.settings.device == "cuda" and isinstance(self.policy, MLPPolicy):
            raise UserError(
                f"--device cuda: the small networks of {self.method.name} are on the CPU, where they are faster; leave it out."
            )
        self.policy.plain = self.settings.plain
        self.give_heads()
        self.policy.to(self.settings.device)

    def _sample_episodes(self, plan: RolloutPlan, for_training: bool) -> None:
        """A policy that learns from groups of whole episodes just played."""
        method, settings, task = self.method, self.settings, self.task
        _check_episodes(method, settings, task)
        for remark in _unset_judgements(method, task) if for_training else ():
            warnings.warn(Remark(remark), stacklevel=2)
        estimator.check(method, POLICY_COLUMNS | plan.provides)
        self._policy_for_sampling()
        self.rollout = plan.build(
            task,
            self.policy,
            tasks=settings.tasks_per_step or 8,
            samples=settings.samples_per_task,
            seed=settings.seed,
            envs=settings.envs or 64 if for_training else 1,
            normalise_observations=bool(settings.normalise_observations),
            workers=settings.env_workers if for_training else 1,
        )

    def check_given(self, given: Settings) -> None:
        """Sizes of the other way of sampling."""
        whole, name, plain = self.method.rollout is not None, self.method.name, Settings()
        sizes = ("horizon", "normalise_rewards") if whole else ("tasks_per_step", "samples_per_task")
        how = "learns from whole episodes" if whole else "learns from --horizon steps of --envs environments"
        for size in sizes:
            if (value := getattr(given, size)) != getattr(plain, size) and value is not False:
                told = f"--{size.replace('_', '-')}{'' if value is True else f' {value}'} does nothing here: {name} {how}"
                ours = "--tasks-per-step and --samples-per-task are its sizes" if whole else "Leave it out"
                raise UserError(f"{told}. {ours}.")

    def _built_policy(self) -> Any:
        """The policy that the method's network builds."""
        return cast(Network, self._through_own_module(self.method.policy)).build(self.task, mix(self.settings.seed, "policy"))

    def _through_own_module(self, part: Any) -> Any:
        """A network or a model that looks through the user's own module, where there is one."""
        return part if self.own_module is None else self.own_module.put_into(part, self.task)

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
            self.policy.add_model(name, self._through_own_module(model), mix(settings.seed, "models"))
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

    def estimate(self, out: Path | None = None) -> Estimate:
        settings, held = self.settings, self.policy.parameter_count()
        trained = sum(parameter.numel() for group in self.policy.trainable().values() for parameter in group)
        seen = self.task.observation_size * np.dtype(self.task.observation_dtype).itemsize
        whole = self.method.rollout is not None
        steps = 0 if whole or settings.offline_steps == settings.steps else (settings.envs or 1) * (settings.horizon or 1)
        rows = {"rows of a step": steps * (seen + ROW_NUMBERS)}
        if self.method.learner == "actor-critic" and (capacity := getattr(self.rollout.data, "capacity", 0)):
            rows = {"remembered rows": min(capacity, (settings.steps or 0) * steps) * (2 * seen + ROW_NUMBERS)}
        return control_estimate(held, trained, rows, settings, steps, out)

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


def _with_rollout(method: Method, task: GymTask) -> Method:
    """The method with the rollout it takes in control: methods without a critic learn from whole episodes."""
    from upslope.rollout.whole_episodes import Episodes

    if method.rollout is not None and method.rollout.domain != "control":
        raise UserError(f"{method.name} samples text in its own way, rollout={method.rollout}; {task.name} is an environment. "
                        "Take another method, such as ppo or grpo.")  # fmt: skip
    plain = method.rollout is None and not any(need.endswith(".value") for need in method.needs())
    return method.derive(rollout=Episodes()) if plain else method


def _refuse_slots(method: Method, task: GymTask, *slots: str) -> None:
    for slot in slots:
        if getattr(method, slot):
            raise UserError(f"{method.name} changes the {slot} of text tasks; {task.name} is an environment.")


def _unset_judgements(method: Method, task: GymTask) -> Iterator[str]:
    """Parts that tell good episodes from bad ones by a number that is still the one for answers."""
    for path, part in method.parts():
        if (knob := part.judges_by) and (value := getattr(part, knob)) == getattr(type(part), knob):
            yield (
                f"{method.name} judges rewards by {path}.{knob}={value:g}, which suits answers that earn 0 or 1. Set it to a good "
                f"return of {task.name}: --set {path}.{knob}=..."
            )


def _check_episodes(method: Method, settings: Settings, task: GymTask) -> None:
    """Refuses what has no meaning for whole episodes of a small network."""
    _refuse_slots(method, task, "view")
    if probed := [probe.name for _, part in method.parts() for probe in part.probes()]:
        raise UserError(f"{method.name} looks into a language model ({', '.join(probed)}); {task.name} is an environment, whose "
                        "policy is a small network. Take another method, such as grpo.")  # fmt: skip
    if values := [name for name, _ in method.heads]:
        raise UserError(f"{method.name} has models.{values[0]}, which learns from --horizon steps of --envs environments; "
                        "rollout=Episodes() is for methods without a critic. Leave it out: --set rollout=none.")  # fmt: skip
    if found := [f"{path}={part}" for path, part in method.parts() if part.text_only]:
        raise UserError(f"{method.name} has {found[0]}, which reads prompts or reference answers; {task.name} is an environment "
                        "and has neither. Take another method, such as grpo.")  # fmt: skip
    if settings.samples_per_task < 2 and "group" in method.needs():
        raise UserError(f"{method.name} compares the episodes of a group, and --samples-per-task is 1; give at least 2.")


def _check_pair(method: Method, task: GymTask) -> None:
    """Refuses a pair of networks where no number says which of them is meant."""
    found = next((path for path, part in method.parts() if getattr(part, "pair", False)), None)
    if found is not None and not task.is_pair:
        raise UserError(f"{found}.pair is for two tasks that take turns, and {task.name} is one. Make it with up.reset_free, or "
                        f"leave {found}.pair out.")  # fmt: skip


def domains_of(task: GymTask) -> tuple[str, ...]:
    """What a method's knobs go by: the kind of task, that of its actions, and whether it shows images."""
    images = ("control-images",) if task.layout.has_images else ()
    return ("control", f"control-{'continuous' if task.continuous else 'discrete'}", *images)


def _images_as_they_are(settings: Settings, task: GymTask) -> dict[str, object]:
    if settings.normalise_observations:
        raise UserError(
            f"normalise_observations=true: {task.name} shows images alone, which networks read as shares of 255. Leave it out."
        )
    return {"normalise_observations": False}


def _settled(method: Method, task: GymTask, settings: Settings, knobs: Knobs, dataset: Dataset | None) -> tuple[Method, Settings]:
    """The method with its knobs for the task, and the settings with all that was left open."""
    domains, stored = domains_of(task), method.learner == "actor-critic"
    recommended = method.settings_on(*domains)
    method = settled_method(method, domains, knobs)
    if not stored:
        method = _with_rollout(method, task)
    usual = STORED_EXPERIENCE if stored else WHOLE_EPISODES if method.rollout is not None else {}
    recipe = dict(usual) | recommended
    if not task.layout.has_numbers:
        recipe |= _images_as_they_are(settings, task)
    asked = settings.offline_steps
    device: Device = pick_device("cuda", "") if settings.device == "cuda" else "cpu"
    settings = dataclasses.replace(settings, device=device).resolved("control", "mlp", continuous=task.continuous, recipe=recipe)
    if asked is None and method.offline and dataset is not None:
        settings = dataclasses.replace(settings, offline_steps=settings.steps)
    return method, settings


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
