"""The run: build what the plan asks for, step, log, evaluate, checkpoint, and go on exactly where a stop left off."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import re
import shutil
import signal
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
import torch

from upslope.errors import UserError
from upslope.learners.nonfinite import NonFinite
from upslope.learners.policy_gradient import PolicyGradient
from upslope.runtime import user_code
from upslope.runtime.alive import at_work
from upslope.runtime.files import load_state, save_state, whole_folder, write_json, write_text
from upslope.runtime.memory import peak_memory
from upslope.runtime.method_file import check_can_be_found_again, method_from_table, method_table, user_files
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.settings import Settings, check_domain
from upslope.runtime.threads import use_threads
from upslope.runtime.trackers import check_trackers, make_trackers
from upslope.setting_up import Bench, set_up
from upslope.types import Method, Metrics


@dataclass(frozen=True)
class Plan:
    """All that defines a run; the same plan gives the same run."""

    method: Method
    task: str
    model: str = "tiny"
    settings: Settings = field(default_factory=Settings)
    reward: str = ""
    test_data: str = ""
    trackers: tuple[str, ...] = ()

    def table(self) -> dict[str, Any]:
        """As it stands in ``run.toml``."""
        from upslope import __version__

        return {
            "upslope": __version__,
            "task": self.task,
            "model": self.model,
            "reward": self.reward,
            "test_data": self.test_data,
            "trackers": list(self.trackers),
            "build": {"python": platform.python_version(), "torch": torch.__version__},
            "data": {path: _digest(Path(path)) for path in (self.task, self.test_data) if path.endswith(".jsonl")},
            "settings": {key: value for key, value in dataclasses.asdict(self.settings).items() if value is not None},
            "method": method_table(self.method),
        }

    @classmethod
    def from_folder(cls, folder: RunFolder) -> Plan:
        """The plan of an existing run. Data that changed since are refused: the run could not be the same."""
        table = tomllib.loads((folder.path / "run.toml").read_text(encoding="utf-8"))
        for path, digest in table["data"].items():
            if not Path(path).is_file() or _digest(Path(path)) != digest:
                raise UserError(f"{path} is missing or has changed since {folder.path} began; put the old file back to go on.")
        code = folder.path / "code"
        for key in ("task", "reward"):
            if ".py:" in table[key]:
                user_code.resolve(table[key], code)  # refuses a changed file
                table[key] = str(code / table[key].partition("@")[0])
        return cls(
            method=method_from_table(table["method"], code),
            task=table["task"],
            model=table["model"],
            settings=Settings(**table["settings"]),
            reward=table["reward"],
            test_data=table["test_data"],
            trackers=tuple(table["trackers"]),
        )


class Watcher:
    """Told what the run is doing. The command line's live table is one."""

    def began(self, run: Run, bench: Bench) -> None: ...
    def warming(self, step: int, accuracy: float, target: float) -> None: ...
    def evaluating(self, done: int, of: int) -> None: ...
    def evaluated(self, step: int, result: dict[str, Any]) -> None: ...
    def stepped(self, step: int, metrics: Metrics) -> None: ...
    def ended(self, summary: dict[str, Any]) -> None: ...


class Stopped(Exception):
    """The user asked the run to stop; a checkpoint holds it."""


@dataclass
class Run:
    """A run, under way or finished."""

    folder: RunFolder
    plan: Plan
    bench: Bench | None = None
    """Task, policy and rollout, while they are in memory."""

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def policy(self) -> Any:
        """The policy as the run left it."""
        if self.bench is None:
            self.bench = load_bench(self.folder, self.plan)
        return self.bench.policy

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One record per step."""
        return [record for record in self.folder.read("metrics.jsonl") if record["kind"] == "step"]

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """One record per evaluation on held-out problems."""
        return [record for record in self.folder.read("metrics.jsonl") if record["kind"] == "evaluation"]

    @property
    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` says of a finished run."""
        import json

        file = self.path / "summary.json"
        if not file.exists():
            raise UserError(f"{self.path} is not finished. 'upslope resume {self.path}' goes on with it.")
        return json.loads(file.read_text())


def start(plan: Plan, knobs: Mapping[str, Any] | None = None, out: str | Path | None = None, watcher: Watcher | None = None) -> Run:
    """Makes the folder of a new run and trains.

    Args:
        knobs: of the method, by path (``{"surrogate.high": 0.3}``).
    """
    check_trackers(plan.trackers)
    check_can_be_found_again(plan.method)
    bench = set_up(plan.method, plan.task, plan.model, plan.settings, plan.reward, plan.test_data, knobs)
    check_domain(plan.settings, bench.task.domain, plan.task, plan.model)
    plan = dataclasses.replace(plan, settings=bench.settings, method=bench.method)
    name = re.sub(r"[^\w.+-]+", "-", f"{plan.method.name}-{bench.task.name}-{plan.settings.seed}".replace("=", ""))
    folder = RunFolder.create(Path(out) if out is not None else None, name)
    table = plan.table()
    files = user_files(plan.method)
    for key in ("task", "reward"):
        if ".py:" in table[key]:
            path, _, name = table[key].rpartition(":")
            files.add(Path(path))
            table[key] = user_code.reference(user_code.load_file(path).__name__, name)
    for file in files:
        (folder.path / "code").mkdir(exist_ok=True)
        shutil.copy(file, folder.path / "code" / file.name)
    write_text(folder.path / "run.toml", tomli_w.dumps(table))
    with at_work(folder.path):
        return _train(Run(folder, plan, bench), watcher or Watcher())


def resume(path: str | Path, watcher: Watcher | None = None) -> Run:
    """Goes on with a run that was stopped, killed or crashed. A finished one is returned as it is."""
    folder = RunFolder.open(path)
    plan = Plan.from_folder(folder)
    if (folder.path / "summary.json").exists():
        return Run(folder, plan)
    bench = set_up(plan.method, plan.task, plan.model, plan.settings, plan.reward, plan.test_data)
    with at_work(folder.path):
        return _train(Run(folder, plan, bench), watcher or Watcher())


def load_bench(folder: RunFolder, plan: Plan) -> Bench:
    """Task, policy and rollout of a run as its last checkpoint has them, for evaluation and use; its engine need not be there."""
    settings = dataclasses.replace(plan.settings, engine="torch")
    bench = set_up(plan.method, plan.task, plan.model, settings, plan.reward, plan.test_data)
    latest = folder.latest()
    bench.policy.load(latest)
    bench.rollout.load_state(load_state(latest, "learner")["rollout"])
    return bench


# -- the loop --------------------------------------------------------------------------------------------------------------


def _train(run: Run, watcher: Watcher) -> Run:
    bench, settings, folder = run.bench, run.plan.settings, run.folder
    assert bench is not None and settings.steps is not None and settings.checkpoint_every is not None
    use_threads(settings.threads or 1)
    watcher.began(run, bench)
    progress: dict[str, Any] = {"step": 0, "tokens": 0.0, "seconds": 0.0}
    learner = _begin_or_restore(run, bench, watcher, progress)
    trackers = make_trackers(run.plan.trackers, folder.path, run.plan.table())
    clock = _Clock(progress["seconds"])
    with _interruptible() as asked_to_stop:
        for step in range(progress["step"] + 1, settings.steps + 1):
            metrics = _step(run, learner, step)
            progress["step"], progress["tokens"] = step, progress["tokens"] + metrics["tokens"]
            folder.append("metrics.jsonl", {"kind": "step", "step": step, **metrics, "memory": peak_memory()})
            _log_samples(run, learner, step)
            bench.record_step(folder, learner, step, metrics["seconds"])
            watcher.stepped(step, metrics)
            for tracker in trackers:
                tracker.log(step, metrics)
            if settings.eval_every and step % settings.eval_every == 0 and step < settings.steps:
                _evaluate(run, bench, watcher, step)
            due = step % settings.checkpoint_every == 0 or step == settings.steps
            stopping = asked_to_stop() and step < settings.steps
            if due or (stopping and learner.rollout.resumes_anywhere):
                _save(run, bench, learner, progress | {"seconds": clock.total()})
                learner.rollout.restart(step + 1)
            if stopping:
                raise Stopped(f"stopped after step {step}; 'upslope resume {run.path}' goes on from {folder.latest().name}.")
    after = _evaluate(run, bench, watcher, settings.steps)
    summary = _summary(run, bench, progress, after, clock.total())
    write_json(folder.path / "summary.json", summary)
    for tracker in trackers:
        tracker.close()
    watcher.ended(summary)
    return run


def _step(run: Run, learner: PolicyGradient, step: int) -> Metrics:
    """One step. Rows without a finite gradient are kept in the run's folder; what ends the run says how to go on."""
    try:
        return learner.step(step)
    except NonFinite as problem:
        raise problem.ended(run.path, run.folder.latest().name) from None
    finally:
        if learner.offence is not None:
            learner.offence.save(run.path / "nonfinite")


def _begin_or_restore(run: Run, bench: Bench, watcher: Watcher, progress: dict[str, Any]) -> PolicyGradient:
    """The learner at the last checkpoint, or at the beginning: warm-started, evaluated, saved."""
    folder, settings = run.folder, run.plan.settings
    keeps_start = PolicyGradient.needs_start(run.plan.method, settings)
    if folder.checkpoints():
        latest = folder.latest()
        start_policy = None
        if keeps_start:
            bench.policy.load(folder.start)
            start_policy = bench.policy.frozen_copy()
        bench.policy.load(latest)
        learner = PolicyGradient(run.plan.method, bench.policy, bench.rollout, settings, start_policy)
        learner.load_state(load_state(latest, "learner"))
        saved = load_state(latest, "run")
        folder.rewind(saved["lines"])
        progress.update(saved["progress"])
        learner.rollout.restart(progress["step"] + 1)
        return learner
    began = time.perf_counter()
    folder.rewind({})
    bench.warm_start(lambda step, accuracy: watcher.warming(step, accuracy, float(settings.warm_start or 0)))
    start_policy = bench.policy.frozen_copy() if keeps_start else None
    if keeps_start:
        with whole_folder(folder.start) as draft:
            bench.policy.save(draft)
    learner = PolicyGradient(run.plan.method, bench.policy, bench.rollout, settings, start_policy)
    progress["before"] = _evaluate(run, bench, watcher, 0)
    progress["seconds"] = time.perf_counter() - began
    _save(run, bench, learner, progress)
    learner.rollout.restart(1)
    return learner


def _save(run: Run, bench: Bench, learner: PolicyGradient, progress: dict[str, Any]) -> None:
    with whole_folder(run.folder.checkpoint(progress["step"])) as draft:
        bench.policy.save(draft)
        save_state(draft, "learner", learner.state())
        save_state(draft, "run", {"progress": progress, "lines": run.folder.lines})
    run.folder.prune(run.plan.settings.keep_checkpoints)


def _evaluate(run: Run, bench: Bench, watcher: Watcher, step: int) -> dict[str, Any]:
    result = bench.evaluate(watcher.evaluating)
    run.folder.append("metrics.jsonl", {"kind": "evaluation", "step": step, **result})
    bench.record_evaluation(run.folder, step)
    watcher.evaluated(step, result)
    return result


def _log_samples(run: Run, learner: PolicyGradient, step: int) -> None:
    rows, count = learner.last, run.plan.settings.samples_logged
    if rows is None or not rows.info or not count:
        return
    assert rows.advantage is not None
    for index in torch.linspace(0, rows.rows - 1, min(count, rows.rows)).long().unique().tolist():
        advantage = float(rows.advantage[index].sum() / rows.sampled[index].sum().clamp_min(1))
        run.folder.append("samples.jsonl", {"step": step, "advantage": advantage, **rows.info[index]})


def _summary(run: Run, bench: Bench, progress: dict[str, Any], after: dict[str, Any], seconds: float) -> dict[str, Any]:
    plan = run.plan
    return {
        "method": plan.method.name,
        "task": plan.task,
        "model": plan.model,
        "seed": plan.settings.seed,
        "steps": plan.settings.steps,
        "score": bench.score_name,
        "score_before": progress["before"]["score"],
        "score_after": after["score"],
        "score_after_interval": [after["low"], after["high"]],
        "seconds": seconds,
        "tokens": progress["tokens"],
    }


class _Clock:
    """Seconds of this process on top of those before it."""

    def __init__(self, before: float):
        self.before, self.began = before, time.perf_counter()

    def total(self) -> float:
        return self.before + time.perf_counter() - self.began


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks for a stop after the step; the second ends at once. Only the main thread can listen."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        old = signal.signal(signal.SIGINT, ask)
    except ValueError:
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, old)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""
