"""The run: build what the plan asks for, step, log, evaluate, checkpoint, and go on exactly where a stop left off."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
import torch

from upslope.errors import Remark, UserError
from upslope.learners.nonfinite import NonFinite
from upslope.learners.policy_gradient import PolicyGradient
from upslope.learners.signal import SignalWatch
from upslope.plain_data import JsonDict, Knobs
from upslope.plan import Plan, base_digests, check_base, checked_table
from upslope.runtime import trust, user_code
from upslope.runtime.checkpoint_files import CheckpointReader
from upslope.runtime.code_bundle import Bundle
from upslope.runtime.files import load_state, save_state, whole_folder, write_json, write_text
from upslope.runtime.memory import explain_out_of_memory, peak_memory
from upslope.runtime.method_file import check_can_be_found_again, user_bundles
from upslope.runtime.python_objects import PythonObjects
from upslope.runtime.reward_text import RewardText
from upslope.runtime.run_folder import RunFolder, check_new
from upslope.runtime.run_lock import owned
from upslope.runtime.settings import check_domain
from upslope.runtime.stop_signals import stop_signals
from upslope.runtime.threads import torch_threads
from upslope.runtime.trackers import check_trackers, make_trackers
from upslope.setting_up import Components, set_up
from upslope.types import Metrics

MENDABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EIO, errno.EMFILE)
"""What the system refuses for a reason that the user can mend."""


class Watcher:
    """Told what the run is doing. The command line's live table is one."""

    def began(self, run: Run, components: Components) -> None: ...
    def warming(self, step: int, accuracy: float, target: float) -> None: ...
    def evaluating(self, done: int, of: int) -> None: ...
    def evaluated(self, step: int, result: JsonDict) -> None: ...
    def stepped(self, step: int, metrics: Metrics) -> None: ...
    def ended(self, summary: JsonDict) -> None: ...


class Stopped(Exception):
    """The user asked the run to stop; a checkpoint holds it."""


@dataclass
class Run:
    """A run, under way or finished. To look at it runs nothing of the user's code that it holds; its `plan` and `policy` do."""

    folder: RunFolder
    given: Plan | None = field(default=None, repr=False)
    """The plan, where it is known already."""
    components: Components | None = field(default=None, repr=False)
    """Task, policy and rollout, while they are in memory."""
    trust: bool = False
    """Whether code in its folder that this machine did not write may run."""
    objects: PythonObjects = field(default_factory=PythonObjects, repr=False)
    """What it was given as Python objects that its folder could not keep."""
    checkpoint: Path | None = None
    """The checkpoint that the components were loaded from."""

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def plan(self) -> Plan:
        """Method, task, reward and settings as objects."""
        return self.given or Plan.from_folder(self.folder, self.trust, self.objects)

    @cached_property
    def table(self) -> JsonDict:
        """The same as plain data: what ``run.toml`` says."""
        return checked_table(self.folder)

    @property
    def policy(self) -> Any:
        """The policy as the run left it."""
        if self.components is None:
            self.components = load_components(self)
        return self.components.policy

    @property
    def metrics(self) -> list[JsonDict]:
        """One record per step."""
        return [record for record in self.folder.read("metrics.jsonl") if record.get("kind") == "step"]

    @property
    def evaluations(self) -> list[JsonDict]:
        """One record per evaluation on held-out problems."""
        return [record for record in self.folder.read("metrics.jsonl") if record.get("kind") == "evaluation"]

    @property
    def summary(self) -> JsonDict:
        """What ``summary.json`` says of a finished run."""
        file = self.path / "summary.json"
        if not file.exists():
            raise UserError(f"{self.path} is not finished. 'upslope resume {self.path}' goes on with it.")
        try:
            found = json.loads(file.read_bytes())
        except (ValueError, RecursionError) as problem:
            raise UserError(f"{file} is damaged: {problem}. Delete it, and 'upslope resume {self.path}' writes it again.") from None
        return found


def start(plan: Plan, knobs: Knobs | None = None, out: str | Path | None = None, watcher: Watcher | None = None) -> Run:
    """Makes the folder of a new run and trains.

    Args:
        knobs: of the method, by path (``{"surrogate.high": 0.3}``).
    """
    if out is not None:
        check_new(out)
    check_trackers(plan.trackers)
    check_can_be_found_again(plan.method)
    components = set_up_plan(plan, knobs)
    check_domain(plan.settings, plan.domain, plan.task, plan.model)
    settled = components.settle_reward(plan.reward)
    plan = dataclasses.replace(plan, settings=components.settings, method=components.method, reward=settled)
    table, bundles = plan.table() | {"base": base_digests(components.policy, plan.settings)}, user_bundles(plan.method)
    if ".py:" in table["task"]:
        table["task"] = _kept_code(table["task"], bundles)
    rewards = [RewardText.parse(text) for text in table["reward"]]
    table["reward"] = [str(each.named(_kept_code(each.name, bundles)) if each.is_code else each) for each in rewards]
    user_code.check_bundles_agree(bundles)
    if lost := table["unkept"]:
        warnings.warn(Remark(_what_resume_needs(lost)), stacklevel=2)
    name = re.sub(r"[^\w.+-]+", "-", f"{plan.method.name}-{components.task.name}-{plan.settings.seed}".replace("=", ""))
    with _mendable():
        folder = RunFolder.create(out, name[-150:])
        with owned(folder.path):
            user_code.keep(bundles, folder.path / "code")
            write_text(folder.path / "run.toml", tomli_w.dumps(table | plan.objects.keep(folder.path)))
            trust.remember(trust.code_of(table, folder.path / "code"))
            return _train(Run(folder, plan, components), watcher or Watcher())


def _kept_code(spec: str, bundles: set[Bundle]) -> str:
    """``file.py:name`` as ``run.toml`` has it; the file goes among those that the run keeps."""
    path, _, name = spec.rpartition(":")
    module = user_code.load_file(path).__name__
    bundles.add(user_code.bundle_of(module))
    return user_code.reference(module, name)


def set_up_plan(plan: Plan, knobs: Knobs | None = None, for_training: bool = True) -> Components:
    """The components of a plan (`upslope.setting_up.set_up`)."""
    return set_up(
        plan.method, plan.task, plan.model, plan.settings, plan.reward, plan.test_data, knobs,
        for_training=for_training, objects=plan.objects,
    )  # fmt: skip


def _what_resume_needs(lost: list[str]) -> str:
    what, again = " and ".join(lost), ", ".join(f"{name}=..." for name in lost)
    return f"the {what} cannot be kept with the run: up.resume(RUN, {again}) and up.load(RUN, {again}) will need it again."


def resume(path: str | Path, watcher: Watcher | None = None, trusted: bool = False, objects: PythonObjects | None = None) -> Run:
    """Goes on with a run that was stopped, killed or crashed. A finished one is returned as it is.

    Args:
        trusted: code in the folder that this machine did not write may run (`upslope.runtime.trust`).
        objects: what the run was given as Python objects that its folder could not keep.
    """
    folder, objects = RunFolder.open(path), objects or PythonObjects()
    if (folder.path / "summary.json").exists():
        return Run(folder, trust=trusted, objects=objects)
    with _mendable(), owned(folder.path):
        plan = Plan.from_folder(folder, trusted, objects)
        components = set_up_plan(plan)
        check_base(folder, components.policy, plan.settings)
        return _train(Run(folder, plan, components), watcher or Watcher())


def load_components(run: Run) -> Components:
    """Task, policy and rollout of a run as its last whole checkpoint has them, for evaluation and use, without its engine."""
    plan = dataclasses.replace(run.plan, settings=dataclasses.replace(run.plan.settings, engine="torch"))
    components = set_up_plan(plan, for_training=False)
    check_base(run.folder, components.policy, plan.settings)

    def load(files: CheckpointReader) -> None:
        components.policy.load(files)
        components.rollout.load_state(load_state(files, "learner")["rollout"])

    _, run.checkpoint, remarks = run.folder.last_whole(load)
    for remark in remarks:
        warnings.warn(Remark(remark), stacklevel=2)
    return components


@contextmanager
def _mendable() -> Iterator[None]:
    """What the system refuses (a full disk, a folder that may not be written, memory) as an error in words."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in MENDABLE:
            raise
        what = f"{problem.filename or 'the run'} cannot be written: {problem.strerror}"
        raise UserError(f"{what}. What was saved before is safe.") from problem
    except (MemoryError, RuntimeError) as problem:
        explained = explain_out_of_memory(problem)
        if explained is None:
            raise
        raise explained from problem


# -- the loop --------------------------------------------------------------------------------------------------------------


def _train(run: Run, watcher: Watcher) -> Run:
    components, settings, folder = run.components, run.plan.settings, run.folder
    assert components is not None and settings.steps is not None
    with torch_threads(settings.threads or 1), stop_signals() as signals:
        watcher.began(run, components)
        progress: JsonDict = {"step": 0, "tokens": 0.0, "seconds": 0.0}
        learner = _begin_or_restore(run, components, watcher, progress)
        trackers = make_trackers(run.plan.trackers, folder.path, run.plan.table())
        clock = _Clock(progress["seconds"])
        signal = SignalWatch(run.plan.method, run.plan.reward, settings.samples_per_task)
        with signals.waiting():
            for step in range(progress["step"] + 1, settings.steps + 1):
                metrics = _step(run, learner, step)
                progress["step"], progress["tokens"] = step, progress["tokens"] + metrics["tokens"]
                folder.append("metrics.jsonl", {"kind": "step", "step": step, **metrics, "memory": peak_memory()})
                _log_samples(run, learner, step)
                signal.say(step, folder)
                components.record_step(folder, learner, step, metrics["seconds"])
                watcher.stepped(step, metrics)
                for tracker in trackers:
                    tracker.log(step, metrics)
                if settings.eval_every and step % settings.eval_every == 0 and step < settings.steps:
                    _evaluate(run, components, watcher, step)
                _save_if_due(run, components, learner, progress | {"seconds": clock.total()}, signals.asked)
        after = _evaluate(run, components, watcher, settings.steps)
        summary = _summary(run, components, progress, after, clock.total())
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
        if learner.nonfinite_update is not None:
            learner.nonfinite_update.save(run.path / "nonfinite")


def _begin_or_restore(run: Run, components: Components, watcher: Watcher, progress: JsonDict) -> PolicyGradient:
    """The learner at the last whole checkpoint, or at the beginning: warm-started, evaluated, saved."""
    folder, settings = run.folder, run.plan.settings
    keeps_start = PolicyGradient.needs_start(run.plan.method, settings)
    if folder.checkpoints():
        return _restore(run, components, progress, keeps_start)
    began = time.perf_counter()
    folder.rewind({})
    components.warm_start(lambda step, accuracy: watcher.warming(step, accuracy, float(settings.warm_start or 0)))
    start_policy = components.policy.frozen_copy() if keeps_start else None
    learner = PolicyGradient(run.plan.method, components.policy, components.rollout, settings, start_policy)
    if keeps_start:
        with whole_folder(folder.start) as files:
            components.policy.save(files)
    progress["before"] = _evaluate(run, components, watcher, 0)
    progress["seconds"] = time.perf_counter() - began
    _save(run, components, learner, progress)
    learner.rollout.restart(1)
    return learner


def _restore(run: Run, components: Components, progress: JsonDict, keeps_start: bool) -> PolicyGradient:
    """The learner as the last whole checkpoint has it, and the logs as they were then."""
    folder, start_policy = run.folder, None
    if keeps_start:
        components.policy.load(folder.reader(folder.start))
        start_policy = components.policy.frozen_copy()

    def load(files: CheckpointReader) -> tuple[Any, Any]:
        states = load_state(files, "learner"), load_state(files, "run")
        components.policy.load(files)
        return states

    (state, saved), latest, remarks = folder.last_whole(load)
    learner = PolicyGradient(run.plan.method, components.policy, components.rollout, run.plan.settings, start_policy)
    learner.load_state(state)
    folder.put_aside_after(latest)
    progress.update(saved["progress"])
    for remark in remarks + folder.rewind(saved["lines"], progress["step"]):
        warnings.warn(Remark(remark), stacklevel=2)
    learner.rollout.restart(progress["step"] + 1)
    return learner


def _save_if_due(run: Run, components: Components, learner: PolicyGradient, progress: JsonDict, asked: bool) -> None:
    """A checkpoint where one is due, or where the run was asked to stop, which it does here."""
    settings, folder, step = run.plan.settings, run.folder, progress["step"]
    assert settings.steps is not None and settings.checkpoint_every is not None
    due = step % settings.checkpoint_every == 0 or step == settings.steps
    stopping = asked and step < settings.steps
    if due or (stopping and learner.rollout.resumes_anywhere):
        _save(run, components, learner, progress)
        learner.rollout.restart(step + 1)
    if stopping:
        last = folder.latest()
        again = step - int(last.name[5:])
        lost = (
            f" The {again} step{'s'[: again > 1]} after it, which fall between two checkpoints, will be made again."
            if again
            else ""
        )
        raise Stopped(f"stopped after step {step}; 'upslope resume {run.path}' goes on from {last.name}.{lost}")


def _save(run: Run, components: Components, learner: PolicyGradient, progress: JsonDict) -> None:
    run.folder.sync_logs()
    with whole_folder(run.folder.checkpoint(progress["step"])) as files:
        components.policy.save(files)
        save_state(files, "learner", learner.state())
        save_state(files, "run", {"progress": progress, "lines": run.folder.lines})
    run.folder.prune(run.plan.settings.keep_checkpoints)


def _evaluate(run: Run, components: Components, watcher: Watcher, step: int) -> JsonDict:
    result = components.evaluate(watcher.evaluating)
    run.folder.append("metrics.jsonl", {"kind": "evaluation", "step": step, **result})
    components.record_evaluation(run.folder, step)
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


def _summary(run: Run, components: Components, progress: JsonDict, after: JsonDict, seconds: float) -> JsonDict:
    plan = run.plan
    return {
        "method": plan.method.name,
        "task": plan.task,
        "model": plan.model,
        "seed": plan.settings.seed,
        "steps": plan.settings.steps,
        "score": components.score_name,
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
