"""The loop: step, log, evaluate, checkpoint; from the beginning, or exactly from where a stop left off."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from upslope.errors import Remark
from upslope.learners.base import Learner, hold_updates, make_learner, needs_start
from upslope.learners.displacement import DisplacementWatch
from upslope.learners.nonfinite import NonFinite
from upslope.learners.signal import SignalWatch
from upslope.plain_data import JsonDict
from upslope.run.listeners import Listeners
from upslope.run.stopping import StopRule
from upslope.run.team import bring_learners, team_of
from upslope.run.watcher import Stopped, Watcher
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter
from upslope.runtime.checkpoint_saver import LARGE, CheckpointSaver, auto_interval, is_due
from upslope.runtime.files import load_state, save_state, write_json
from upslope.runtime.memory import peak_memory
from upslope.runtime.stop_signals import stop_signals
from upslope.runtime.team import ALONE, Team
from upslope.runtime.threads import torch_threads
from upslope.sizes.disk import checkpoint_bytes, kept_parameters
from upslope.types import Metrics, State
from upslope.types.batch import spread

if TYPE_CHECKING:
    from upslope.run import Run


def train(run: Run, watcher: Watcher) -> Run:
    """Trains a run to its end."""
    with watcher if isinstance(watcher, Listeners) else Listeners(watcher) as listeners:
        return _train(run, listeners)


def _train(run: Run, watcher: Listeners) -> Run:
    assert run.components is not None
    settings = run.plan.settings
    size = checkpoint_bytes(run.components.policy, settings)
    with torch_threads(settings.threads or 1), stop_signals() as signals:
        watcher.began(run, run.components)
        with CheckpointSaver(run.folder, settings.keep_checkpoints or 2, size) as saver:
            with run.components.with_workers(run.folder, run.trust), team_of(run) as team:
                loop = TrainingLoop(run, watcher, saver, team)
                loop.begin_or_restore()
                loop.heed_callbacks()
                with signals.waiting():
                    while not loop.over:
                        loop.step()
                        loop.save_if_due(signals.asked or watcher.failed)
                summary = loop.finish()
            loop.tell_written(wait=True)
            watcher.check(f"All steps are saved; up.resume({str(run.path)!r}) ends the run.")
        run.folder.prune(settings.keep_checkpoints or 1)
        write_json(run.path / "summary.json", summary)
        if not loop.saves:
            kept = "only the best evaluation's weights were kept" if settings.keep else "its weights are gone with this process"
            warnings.warn(Remark(f"no checkpoint was written (--checkpoint-every none): {kept}."), stacklevel=2)
    watcher.ended(summary)
    return run


class TrainingLoop:
    """A run under way."""

    def __init__(self, run: Run, watcher: Listeners, saver: CheckpointSaver, team: Team = ALONE):
        assert run.components is not None
        self.team = team
        self.run, self.components, self.watcher, self.saver = run, run.components, watcher, saver
        self.folder, self.settings = run.folder, run.plan.settings
        if self.settings.sandbox == "weak":
            self.folder.marks = {"sandbox": "weak"}
        self.progress: JsonDict = {"step": 0, "tokens": 0.0, "seconds": 0.0}
        self.stop_rule = StopRule(self.settings, {})
        control = run.plan.domain == "control"
        self.signal = SignalWatch(run.plan.method, run.plan.reward, self.settings.samples_per_task, control)
        self.displacement = DisplacementWatch(run.plan.method)
        self.clock = _Clock(0.0)
        self.evaluated_at = -1
        self.faults_before: Counter[str] = Counter()
        """Those of earlier processes of this run."""
        self.faults_told: Counter[str] = Counter()
        """Those of this process that are in the log."""
        self.keeps_start = needs_start(run.plan.method, self.settings)
        self.saves = self.settings.checkpoint_every != "none"
        self.learner: Learner
        self.still: Callable[[], list[Tensor]] = list
        """Weights and moments, which no update moves before the checkpoint under way has copied them."""

    @property
    def over(self) -> bool:
        return "ended_early" in self.progress or self.progress["step"] >= (self.settings.steps or 0)

    def _end_if(self, reason: str) -> None:
        """Ends the run before its last step, if there is a reason."""
        if reason:
            self.progress["ended_early"] = reason

    def heed_callbacks(self) -> None:
        """Tells them which checkpoints are on the disk, and ends the run here, evaluated, if one of them asks for it."""
        self.tell_written()
        if self.watcher.failed and not self.progress["step"]:
            self.saver.wait()
            self.watcher.check(f"up.resume({str(self.run.path)!r}) goes on from the beginning.")
        if (reason := self.watcher.callbacks.stop) and not self.over:
            if self.evaluated_at != self.progress["step"]:
                self._evaluate()
            self._end_if(reason)

    def tell_written(self, wait: bool = False) -> None:
        """The checkpoints that were written in the background since the last time."""
        if wait:
            self.saver.wait()
        while self.saver.written:
            path = self.saver.written.popleft()
            self.watcher.saved(int(path.name[5:]), path)

    # -- the beginning -------------------------------------------------------------------------------------------------

    def begin_or_restore(self) -> None:
        """The learner at the last whole checkpoint, or at the beginning: warm-started, evaluated, saved."""
        self.folder.drop_unfinished()
        self.components.keep_in(self.folder)
        if self.folder.checkpoints():
            self._restore()
        else:
            self._begin()
        self.components.allocate(self.learner)
        self.learner.rollout.restart(self.progress["step"] + 1)
        self.clock = _Clock(self.progress["seconds"])

    def _begin(self) -> None:
        began, target = time.perf_counter(), float(self.settings.warm_start or 0)
        self.folder.rewind({})
        self.components.warm_start(lambda step, accuracy: self.watcher.warming(step, accuracy, target))
        start_policy = self.components.policy.frozen_copy() if self.keeps_start else None
        self.learner = self._learner(start_policy)
        if self.keeps_start and self.saves:
            self.saver.save(self.folder.start, self.components.save_start, self.still())
        before = self._evaluate()
        self.stop_rule.check(before)
        self.progress |= {"before": before, "seconds": time.perf_counter() - began}
        self._end_if(self.stop_rule.reason(0, before))
        self._save()
        self.saver.check()
        self._tell_interval()

    def _restore(self) -> None:
        """The learner as the last whole checkpoint has it, and the logs as they were then."""
        start_policy, policy = None, self.components.policy
        if self.keeps_start:
            policy.load(self.folder.reader(self.folder.start))
            start_policy = policy.frozen_copy()

        def load(files: CheckpointReader) -> tuple[Any, Any]:
            states = load_state(files, "learner"), load_state(files, "run")
            policy.load(files)
            return states

        (state, saved), latest, remarks = self.folder.last_whole(load)
        self.learner = self._learner(start_policy, state)
        self.folder.put_aside_after(latest)
        self.progress.update(saved["progress"])
        self.faults_before = Counter(self.progress.get("faults", {}))
        self.stop_rule.seen = dict(self.progress.get("best", {}))
        longer = self.progress["step"] in self.run.lengthened_at
        last = self._evaluations_here() if longer else []
        for remark in remarks + self.folder.rewind(saved["lines"], self.progress["step"]):
            warnings.warn(Remark(remark), stacklevel=2)
        if longer:
            self._go_on_after_the_end(last)

    def _evaluations_here(self) -> list[JsonDict]:
        return [each for each in self.run.evaluations if each["step"] == self.progress["step"]]

    def _go_on_after_the_end(self, last: list[JsonDict]) -> None:
        """A run that had ended here: nothing that ended it counts any more, and its last evaluation stays in its history."""
        self.progress.pop("ended_early", None)
        self.progress.pop("evaluated", None)
        if last and not self._evaluations_here():  # it came after the checkpoint
            self.folder.append("metrics.jsonl", last[-1])
            self.stop_rule.is_best(self.progress["step"], last[-1])
        self.stop_rule.seen["since"] = 0

    def _learner(self, start_policy: Any, state: State | None = None) -> Learner:
        """The learner with the others of its team; ``state`` is what a checkpoint has of it."""
        made, method, settings = self.components, self.run.plan.method, self.settings

        def make(policy: Any, start: Any) -> Learner:
            return make_learner(method, policy, made.rollout, settings, start, made.stage_rollouts, self.team)

        learner = bring_learners(self.team, made, make, start_policy, state, settings.shard)
        if not settings.shard:  # there, what is saved is put together when it is saved
            self.still = hold_updates(learner, self.saver.wait_for_copy)
        return learner

    def _tell_interval(self) -> None:
        """Of a large model, how often it is saved; smaller ones are saved every two minutes or more often."""
        parameters = kept_parameters(self.components.policy)
        if self.settings.checkpoint_every == "auto" and parameters > LARGE:
            minutes = auto_interval(self.saver.seconds, parameters) / 60
            told = f"a checkpoint takes about {self.saver.seconds:.0f} s to write: there will be one every {minutes:.0f} minutes"
            warnings.warn(Remark(f"{told}, and a kill loses the steps since the last. --checkpoint-every N sets it."), stacklevel=2)

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Samples, learns, logs, and evaluates where that is due."""
        step, settings = self.progress["step"] + 1, self.settings
        metrics = self._learn(step)
        self.progress |= {"step": step, "tokens": self.progress["tokens"] + metrics["tokens"]}
        metrics |= self._faults()
        self.folder.append("metrics.jsonl", {"kind": "step", "step": step, **metrics, "memory": peak_memory()})
        self._log_samples(step)
        self.signal.say(step, self.folder)
        self.displacement.say(step, self.folder)
        self.components.record_step(self.folder, self.learner, step, metrics["seconds"])
        self.watcher.stepped(step, metrics)
        if settings.eval_every and step % settings.eval_every == 0 and step < (settings.steps or 0):
            self._end_if(self.stop_rule.reason(step, self._evaluate()))
        self.saver.check()
        self.heed_callbacks()

    def _faults(self) -> Metrics:
        """How often something went wrong and was mended during the step, by kind, also those of earlier steps; the summary has the
        run's totals."""
        faults = self.components.faults()
        if not faults:
            return {}
        self.progress["faults"] = dict(self.faults_before + faults)
        fresh, self.faults_told = faults - self.faults_told, Counter(faults)
        return {f"fault_{kind}": float(fresh[kind]) for kind in faults}

    def _learn(self, step: int) -> Metrics:
        """One step. Rows without a finite gradient are kept in the run's folder; what ends the run says how to go on."""
        try:
            return self.learner.step(step)
        except NonFinite as problem:
            self.saver.wait()
            raise problem.ended(self.run.path, self.folder.latest().name if self.saves else "") from None
        finally:
            if self.learner.nonfinite_update is not None:
                self.learner.nonfinite_update.save(self.run.path / "nonfinite")

    def _log_samples(self, step: int) -> None:
        rows, count = self.learner.last, self.settings.samples_logged
        if rows is None or not rows.info or not count:
            return
        assert rows.advantage is not None
        records = []
        for index in spread(rows.rows, count).tolist():
            advantage = float(rows.advantage[index].sum() / rows.sampled[index].sum().clamp_min(1))
            records.append({"step": step, "advantage": advantage, **rows.info[index]})
            self.folder.append("samples.jsonl", records[-1])
        self.watcher.sampled(step, records)

    def _evaluate(self) -> JsonDict:
        """The score as the policy stands; where it is the best so far and that is to be kept, with its weights."""
        step, result = self.progress["step"], self.components.evaluate(self.watcher.evaluating)
        self.folder.append("metrics.jsonl", {"kind": "evaluation", "step": step, **result})
        self.components.record_evaluation(self.folder, step)
        if self.stop_rule.is_best(step, result) and self.settings.keep:
            self.saver.save(self.folder.best, lambda files: self._fill_best(files, step, result), self.still(), last=self.over)
        self.progress |= {"best": dict(self.stop_rule.seen), "evaluated": result}
        self.evaluated_at = step
        self.watcher.evaluated(step, result)
        return result

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save_if_due(self, asked: bool) -> None:
        """A checkpoint where one is due, or where the run was asked to stop, which it does here."""
        step, every = self.progress["step"], self.settings.checkpoint_every or 10
        stopping, anywhere = asked and not self.over, self.learner.rollout.resumes_anywhere
        if every == "none":
            if stopping:
                told = (
                    f"stopped after step {step}; it keeps no checkpoints (--checkpoint-every none), so nothing can go on from here."
                )
                raise self.watcher.ending(Stopped(told))
            return
        due = self.over or is_due(every, step, self.saver, kept_parameters(self.components.policy))
        if due or (stopping and anywhere):
            self._save()
            self.learner.rollout.restart(step + 1)
        if stopping:
            self.saver.wait()
            last = self.folder.latest()
            again = step - int(last.name[5:])
            lost = f" The {again} step{'s'[: again > 1]} after it, which fall between two checkpoints, will be made again."
            told = f"stopped after step {step}; 'upslope resume {self.run.path}' goes on from {last.name}."
            raise self.watcher.ending(Stopped(told + (lost if again else "")))

    def _save(self) -> None:
        if not self.saves:
            return
        self.tell_written(wait=True)  # before the new one takes the place of an older one
        self.learner.before_checkpoint()
        progress = self.progress | ({"seconds": self.clock.total()} if self.progress["step"] else {})
        self.saver.save(
            self.folder.checkpoint(progress["step"]), lambda files: self._fill(files, progress), self.still(), self.over
        )

    def _fill(self, files: CheckpointWriter, progress: JsonDict) -> None:
        if progress["step"]:
            self.components.policy.save(files)
        elif self.keeps_start:
            files.link_folder(self.folder.start)
        else:
            self.components.save_start(files)
        save_state(files, "learner", self.learner.state())
        save_state(files, "run", {"progress": progress, "lines": self.folder.lines})

    def _fill_best(self, files: CheckpointWriter, step: int, result: JsonDict) -> None:
        self.components.policy.save(files)
        save_state(files, "learner", {"rollout": self.learner.rollout.state()})
        files.write_json("best.json", {"step": step, "measure": self.stop_rule.measure, **result})

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> JsonDict:
        """The last evaluation and the summary."""
        step, plan = self.progress["step"], self.run.plan
        after = self.progress["evaluated"] if "ended_early" in self.progress else self._evaluate()
        summary = {
            "method": plan.method.name,
            "task": plan.task_name,
            "model": plan.model,
            "seed": plan.settings.seed,
            "steps": step,
            "score": self.components.score_name,
            "score_before": self.progress["before"]["score"],
            "score_after": after["score"],
            "score_after_interval": [after["low"], after["high"]],
            "seconds": self.clock.total(),
            "tokens": self.progress["tokens"],
        }
        return summary | {key: self.progress[key] for key in ("ended_early", "faults") if key in self.progress}


class _Clock:
    """Seconds of this process on top of those before it."""

    def __init__(self, before: float):
        self.before, self.began = before, time.perf_counter()

    def total(self) -> float:
        return self.before + time.perf_counter() - self.began
