"""The control bed: a whole run of `upslope.train` in an environment, with or without a dataset that is made for it on the spot.

    bed = ControlBed("gym:Pendulum-v1", data="mixed:expert=0.3", data_steps=10_000)      # recipes of `upslope data make`
    bed = ControlBed("WalledPoint", data="mixed:expert=0.1", data_steps=10_000)          # an environment of control_envs.py
    bed = ControlBed("gym:Pendulum-v1", data=HALF_TRAINED, data_steps=2000)              # by a policy of sac that was stopped early

With one seed every variant learns from the same data. Each step of a run reports ``return``, that of the last evaluation, beside
the learner's own metrics; a run that ended because its values left all bounds reports nothing behind that and keeps its
last return.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import SHARED, Cell, Measure, Result

from upslope.errors import Remark

ENVIRONMENTS = Path(__file__).resolve().parent / "control_envs.py"
HALF_TRAINED = "half-trained"
HALF = {"steps": 1, "lr": 1e-3, "eval_problems": 1, "minibatch": 128}
"""Of the run of sac that makes `HALF_TRAINED` data. After 2000 steps its policy returned -984 and -998 on Pendulum (seeds 100 and
101): a quarter of the way from random actions, -1297, to the controller written by hand, -160."""
SMALL = {"policy.hidden": (64, 64), "models.q.network.hidden": (64, 64)}
"""Knobs that every run of these claims has: two layers of 64 in place of 256."""


@dataclass(frozen=True)
class ControlBed:
    """A whole run in an environment.

    Fields:
        task: as for `upslope.train`, or the name of a class in `control_envs`.
        data: a recipe of `upslope data make`, or `HALF_TRAINED`; empty gives no dataset.
        data_steps: decisions in it.
        trained: steps and updates of the sac run whose last policy makes `HALF_TRAINED` data; its actions are drawn.
        data_task: the environment it is made in, if not ``task``.
        test_task: the environment in which policies are judged, if not ``task``.
        episodes: over which the final return is the mean.
        after: a function of the finished run at the top level of a module, for further numbers (`Result.extra`).
    """

    task: str = "gym:Pendulum-v1"
    data: str = ""
    data_steps: int = 0
    trained: int = 2000
    data_task: str = ""
    test_task: str = ""
    episodes: int = 50
    after: Callable[[Any], dict[str, float]] | None = None

    def train(self, cell: Cell) -> Result:
        """One cell: the run, judged."""
        import upslope as up
        from upslope.learners.nonfinite import NonFinite
        from upslope.run import Run
        from upslope.runtime.run_folder import RunFolder

        began = time.perf_counter()
        settings = {"eval_every": 1} | dict(cell.settings) | ({"test_task": _named(self.test_task)} if self.test_task else {})
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder, data_folder() as shared:
            warnings.simplefilter("ignore", Remark)
            data = self.dataset(cell.seed, shared) if self.data and _wants_data(cell) else ""
            out, stopped = Path(folder) / "run", 0.0
            try:
                run = up.train(cell.method, _named(self.task), data=str(data), knobs=dict(cell.knobs), seed=cell.seed, out=out,
                               record="none", checkpoint_every=10_000, **settings)  # fmt: skip
            except NonFinite:
                run, stopped = Run(RunFolder.open(out)), 1.0
            metrics = _with_returns(run, int(cell.settings["steps"]))
            told = {"stopped": stopped, "final return": metrics[-1]["return"]}
            if not stopped:
                told["final return"] = self.final_return(run)
                told |= self.after(run) if self.after is not None else {}
        return Result(cell, metrics[0]["return"], told["final return"], time.perf_counter() - began, metrics, told)

    def final_return(self, run: Any) -> float:
        """The mean of episodes in which the policy takes its likeliest actions."""
        from upslope.rollout.environments import evaluate_control

        parts = run.components
        return float(np.mean(evaluate_control(parts.test_task, run.policy, parts.rollout.state(), episodes=self.episodes, seed=77)))

    def dataset(self, seed: int, folder: Path) -> Path:
        """The dataset of a seed, made by whoever comes first."""
        from upslope.datasets.making import make_data

        task = self.data_task or self.task
        name = "".join(c if c.isalnum() else "-" for c in f"{task} {self.data} {self.trained} {self.data_steps} {seed}")
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            register_controllers()
            if self.data != HALF_TRAINED:
                make_data(name, _named(task), self.data, self.data_steps, seed, out=folder)
            elif not (folder / name).exists():
                import upslope as up

                run = up.train("sac", _named(task), knobs=SMALL, seed=seed, out=folder / f"{name}-run", horizon=self.trained,
                               updates_per_step=self.trained, **HALF)  # fmt: skip
                make_data(name, _named(task), "expert", self.data_steps, seed, run.path, out=folder)
        return folder / name


def register_controllers() -> None:
    """The experts of `control_envs`, for recipes that need one."""
    import control_envs

    from upslope.datasets import controllers

    controllers.CONTROLLERS.update(control_envs.CONTROLLERS)  # type: ignore[attr-defined]


@contextlib.contextmanager
def data_folder() -> Iterator[Path]:
    """Where datasets are kept: shared by the processes of a claim where one was named, otherwise for this run alone."""
    if shared := os.environ.get(SHARED):
        Path(shared).mkdir(parents=True, exist_ok=True)
        yield Path(shared)
        return
    with tempfile.TemporaryDirectory() as own:
        yield Path(own)


def _named(task: str) -> str:
    return task if ":" in task else f"{ENVIRONMENTS}:{task}"


def _wants_data(cell: Cell) -> bool:
    """Whether the method learns from a dataset at all: sac beside it is to have none, unless it learns from nothing else."""
    import upslope as up

    method = up.method(cell.method) if isinstance(cell.method, str) else cell.method
    needs = any(getattr(part, "needs_dataset", False) for _, part in method.parts())
    return method.offline or needs or bool(cell.settings.get("offline_steps"))


def _of_machine(metric: str) -> bool:
    """Whether it differs from one machine and moment to the next."""
    return "second" in metric or metric == "memory"


def _with_returns(run: Any, steps: int) -> list[dict[str, Any]]:
    """A record for each step that was planned, with the return of the last evaluation up to there."""
    scores = {record["step"]: record["score"] for record in run.evaluations}
    records = {record["step"]: record for record in run.metrics}
    told, last = [], scores[0]
    for step in range(1, steps + 1):
        last = scores.get(step, last)
        numbers = {k: v for k, v in records.get(step, {}).items() if isinstance(v, (int, float)) and not _of_machine(k)}
        told.append({**numbers, "return": last})
    return told


# -- measures --------------------------------------------------------------------------------------------------------------


def env_steps_until(level: float, within: int) -> Measure:
    """Steps in the environment until an evaluation reaches a return; ``within`` if none does before, so that who acts for longer
    has no more to lose."""

    def measure(result: Result) -> float:
        acted = result.curve("env_steps")[result.curve("return") >= level]
        return float(min(acted[0] if len(acted) else within, within))

    return measure


def last(metric: str) -> Measure:
    """The last value that was reported: of a run that was ended, the one it was ended for is not."""

    def measure(result: Result) -> float:
        curve = result.curve(metric)
        return float([np.nan, *curve[np.isfinite(curve)]][-1])

    return measure


def highest(metric: str) -> Measure:
    """The largest value over the steps."""
    return lambda result: float(np.nanmax(result.curve(metric)))


def lowest(metric: str) -> Measure:
    """The smallest value over the steps."""
    return lambda result: float(np.nanmin(result.curve(metric)))


def final_return(result: Result) -> float:
    """The mean return of the policy at the end."""
    return result.after
