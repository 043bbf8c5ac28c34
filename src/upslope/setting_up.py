"""From names to things: the task, the policy and the rollout of a run, for text and for control.

The two kinds of task meet here and in nothing above: both give a `Bench`, and the run only ever sees that.
"""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from upslope.errors import UserError
from upslope.learners.policy_gradient import POLICY_COLUMNS, PolicyGradient
from upslope.objective import estimator
from upslope.rewards import load_reward
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.seeding import mix
from upslope.runtime.settings import Device, Settings
from upslope.runtime.statistics import bootstrap_interval
from upslope.tasks import load_task
from upslope.types import Method

Progress = Callable[[int, int], None]
RECORDING, FREE_RECORDING = 0.02, 1.0
"""Share of the time of the steps that recording some rollouts may take, and seconds that are not counted."""
WATCHED_EPISODE = 7
"""Seed of the episode that is kept at each evaluation."""


class Bench(ABC):
    """What a run works with."""

    score_name: str
    task: Any
    policy: Any
    rollout: Any

    def __init__(self, method: Method, settings: Settings):
        self.method, self.settings = method, settings

    @abstractmethod
    def warm_start(self, progress: Callable[[int, float], None]) -> None:
        """Brings an untrained policy to where rewards can be earned, if the settings ask for it."""

    @abstractmethod
    def evaluate(self, progress: Progress | None = None) -> dict[str, Any]:
        """``score`` on problems or episodes never learned from, with its 95% interval ``low`` and ``high``."""

    @abstractmethod
    def record_step(self, folder: RunFolder, learner: PolicyGradient, step: int, seconds: float) -> None:
        """Keeps what a step, which took so many seconds, can show for the inspector, if the settings ask for it."""

    @abstractmethod
    def record_evaluation(self, folder: RunFolder, step: int) -> None:
        """Keeps what an evaluation can show for the inspector, if the settings ask for it."""

    def give_heads(self) -> None:
        """What the method's learned models put on the policy."""
        for name, model in self.method.models:
            self.policy.add_head(name, model.head(), mix(self.settings.seed, f"{name} head"))


class TextBench(Bench):
    """Problems in text, answered by a language model."""

    score_name = "accuracy"

    def __init__(
        self, method: Method, task: Any, model: str, settings: Settings, knobs: Mapping[str, Any], checking: Progress | None = None
    ):
        from upslope.policies.token_text import TokenText
        from upslope.rollout.engines.by_name import make_engine
        from upslope.rollout.parity_check import load_checked
        from upslope.rollout.prompt_lengths import fit_prompts
        from upslope.rollout.text import TextRollout
        from upslope.types import Sampling

        settings = settings.resolved("text", model, max_tokens=task.max_tokens)
        settings = dataclasses.replace(settings, device=pick_device(settings.device, model))
        method = _settled(method, ("text",), knobs)
        estimator.check(method, POLICY_COLUMNS | getattr(method.rollout, "provides", TextRollout.provides))
        super().__init__(method, settings)
        if settings.samples_per_task < 2 and "group" in method.needs():
            raise UserError(f"{method.name} compares the samples of a task, and --samples-per-task is 1; give at least 2.")
        self.policy = load_checked(model, settings.seed).to(settings.device)
        self.policy.plain |= settings.plain
        self.policy.precise, self.policy.recompute = settings.precision == "float32", settings.recompute
        tokens = settings.max_tokens or task.max_tokens
        fitted = fit_prompts(
            task, self.policy.tokenizer, self.policy.model.config, name=self.policy.name, max_tokens=tokens, long=settings.long,
            progress=checking,
        )  # fmt: skip
        self.task, self.policy.prompt_limit, self.prompt_lengths = fitted.task, fitted.limit, fitted.lengths
        if settings.lora:
            self.policy.add_lora(settings.lora, settings.seed)
        self.give_heads()
        self.pieces = TokenText(self.policy.tokenizer)
        self.stepping = self.recording = 0.0
        sampling = Sampling(
            max_tokens=tokens,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            stop=settings.stops,
        )
        make = TextRollout if method.rollout is None else method.rollout.build
        self.rollout = make(
            self.task,
            self.policy,
            tasks=settings.tasks_per_step,
            samples=settings.samples_per_task,
            sampling=sampling,
            seed=settings.seed,
            engine=make_engine(settings.engine, self.policy, sampling, method),
        )

    def check_memory(self) -> None:
        """Refuses settings whose steps would take more memory than is free, as far as that can be foreseen."""
        from upslope.rollout.step_memory import StepSizes, check_memory

        settings, method = self.settings, self.method
        copies = PolicyGradient.needs_start(method, settings) + sum(part.copies for _, part in method.references)
        tokens = settings.max_tokens or self.task.max_tokens
        tasks, samples, here = settings.tasks_per_step, settings.samples_per_task, settings.engine == "torch"
        check_memory(self.policy, StepSizes(tasks, samples, tokens, self.prompt_lengths, copies, here))

    def warm_start(self, progress: Callable[[int, float], None]) -> None:
        from upslope.learners.warm_start import warm_start

        settings = self.settings
        if settings.warm_start:
            tokens = settings.max_tokens or self.task.max_tokens
            warm_start(self.policy, self.task, settings.warm_start, max_tokens=tokens, seed=settings.seed, progress=progress)

    def evaluate(self, progress: Progress | None = None) -> dict[str, Any]:
        from upslope.rollout.evaluation import evaluate_text

        settings = self.settings
        tokens = settings.max_tokens or self.task.max_tokens
        engine = self.rollout.engine
        follows = getattr(engine, "follows", True)  # one that keeps other weights than the policy's cannot answer for it
        self.rollout.sync()
        found = evaluate_text(
            self.task,
            self.policy,
            problems=settings.eval_problems or 100,
            max_tokens=tokens,
            stop=settings.stops,
            engine=engine if follows else None,
            progress=progress,
        )
        low, high = found.interval()
        reward = sum(map(sum, found.reward)) / len(found.problems)
        return {"score": found.accuracy, "low": low, "high": high, "problems": len(found.problems), "reward": reward}

    def record_step(self, folder: RunFolder, learner: PolicyGradient, step: int, seconds: float) -> None:
        """The step's rollouts, token by token; steps are left out where some would take more than `RECORDING` of the time."""
        from upslope.learners.rollout_record import rollout_record

        self.stepping += seconds
        everything, last = self.settings.record == "all", step == self.settings.steps
        if learner.traced is None or not (everything or last or self.recording <= FREE_RECORDING + RECORDING * self.stepping):
            return
        began = time.perf_counter()
        folder.write_rollouts(*rollout_record(learner.traced, self.pieces, step, everything))
        self.recording += time.perf_counter() - began

    def record_evaluation(self, folder: RunFolder, step: int) -> None:
        """Nothing: the steps have shown how it answers."""


class ControlBench(Bench):
    """A gymnasium environment, acted in by a small network."""

    score_name = "mean return"

    def __init__(self, method: Method, task: Any, settings: Settings, knobs: Mapping[str, Any]):
        from upslope.policies.control.mlp import MLPPolicy
        from upslope.rollout.environments import EnvRollout

        self.task = task
        if settings.engine != "torch":
            raise UserError(f"--engine {settings.engine} continues text; {task.name} is an environment. Leave it out.")
        if settings.device == "cuda":
            raise UserError(
                "--device cuda: the small networks of control tasks are on the CPU, where they are faster; leave it out."
            )
        settings = dataclasses.replace(settings, device="cpu").resolved("control", "mlp", continuous=task.continuous)
        method = _settled(method, ("control", f"control-{'continuous' if task.continuous else 'discrete'}"), knobs)
        estimator.check(method, POLICY_COLUMNS | EnvRollout.provides)
        for slot in ("curriculum", "rollout", "data", "policy"):
            if getattr(method, slot):
                raise UserError(f"{method.name} changes the {slot} of text tasks; {task.name} is an environment.")
        super().__init__(method, settings)
        self.policy = MLPPolicy.for_task(task, seed=mix(settings.seed, "policy"))
        self.policy.plain = settings.plain
        self.give_heads()
        self.rollout = EnvRollout(
            task,
            self.policy,
            envs=settings.envs,
            horizon=settings.horizon,
            seed=settings.seed,
            gamma=getattr(method.advantage, "gamma", 0.99),
            normalise_observations=bool(settings.normalise_observations),
            normalise_rewards=bool(settings.normalise_rewards),
            workers=settings.env_workers,
        )

    def warm_start(self, progress: Callable[[int, float], None]) -> None:
        """A controller starts from nothing."""

    def evaluate(self, progress: Progress | None = None) -> dict[str, Any]:
        from upslope.rollout.environments import evaluate_control
        from upslope.rollout.evaluation import EVALUATION_SEED

        episodes = self.settings.eval_problems or 100

        def told(done: int) -> None:
            if progress is not None:
                progress(done, episodes)

        returns = evaluate_control(
            self.task, self.policy, self.rollout.state(), episodes=episodes, seed=EVALUATION_SEED, progress=told
        )
        low, high = bootstrap_interval(returns)
        return {"score": float(np.mean(returns)), "low": low, "high": high, "episodes": episodes, "spread": float(np.std(returns))}

    def record_step(self, folder: RunFolder, learner: PolicyGradient, step: int, seconds: float) -> None:
        """Nothing: single decisions of many environments tell little."""

    def record_evaluation(self, folder: RunFolder, step: int) -> None:
        """An episode, always from the same beginning."""
        from upslope.rollout.recorded_episode import play

        if self.settings.record != "none":
            folder.write_episode(play(self.task, self.policy, self.rollout.observations, WATCHED_EPISODE).record(step))


def set_up(
    method: Method,
    task: str,
    model: str,
    settings: Settings,
    reward: str = "",
    test_data: str = "",
    knobs: Mapping[str, Any] | None = None,
    checking: Progress | None = None,
    for_training: bool = True,
) -> Bench:
    """The bench for a plan. Whatever cannot work is refused here, before the first rollout.

    Args:
        knobs: set by path after the method's own for this kind of task; the bench's ``method`` has both and asks for neither again.
        checking: told how many of a file's prompts have been looked at; without it a line says so if it takes seconds.
        for_training: steps will be made, so the memory for them must be there.
    """
    loaded = load_task(task, reward=load_reward(reward) if reward else None, test_data=test_data or None)
    if loaded.domain == "control":
        return ControlBench(method, loaded, settings, knobs or {})
    bench = TextBench(method, loaded, model, settings, knobs or {}, checking)
    if for_training:
        bench.check_memory()
    return bench


def pick_device(asked: Device, model: str) -> Device:
    """The device a language model goes to; asking for a GPU where there is none is refused."""
    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise UserError(
            "--device cuda, but torch sees no GPU here. Leave it out, or install a CUDA build: make install TORCH=torch."
        )
    if asked == "auto":
        return "cuda" if available and model.split(":")[0] != "tiny" else "cpu"
    return asked


def _settled(method: Method, domains: tuple[str, ...], knobs: Mapping[str, Any]) -> Method:
    for domain in domains:
        method = method.for_domain(domain)
    return method.with_knobs(knobs).derive(on=())
