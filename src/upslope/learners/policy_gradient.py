"""The policy-gradient learner, one for every method: it samples, asks the method for a loss per decision, and optimises.

It knows no method's name, and neither language models nor environments: `upslope.types.interfaces` says what it asks of a policy
and of a rollout. How a step is cut into updates is the business of `upslope.learners.updates`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from upslope.errors import MethodError, UserError
from upslope.learners.curricula import Ordering, check_curriculum, kept_problems, with_advantage
from upslope.learners.data_context import LearnerContext
from upslope.learners.lessons import Lesson, packed_lesson
from upslope.learners.metrics import MetricSums, component_metrics, sampling_metrics
from upslope.learners.nonfinite import NonFiniteUpdate
from upslope.learners.optimizer_step import OptimizerStep
from upslope.learners.parts import in_parts
from upslope.learners.phases import Phase
from upslope.learners.policy_views import PolicyViews
from upslope.learners.references import References, of_older_checkpoint
from upslope.learners.token_trace import TokenTrace, TracedStep
from upslope.learners.updates.base import Updater
from upslope.learners.updates.decisions import DecisionUpdater
from upslope.learners.updates.rows import BesideRows, RowLoss, RowUpdater
from upslope.objective import estimator
from upslope.objective.base import Controller, Data, LossTerm, State
from upslope.runtime.seeding import generator, mix
from upslope.runtime.settings import Settings
from upslope.runtime.team import ALONE, Team
from upslope.types import (
    Choosing,
    DecisionPolicy,
    Method,
    Metrics,
    Policy,
    Rollout,
    RolloutRequest,
    Source,
    TaskRollout,
    Trajectories,
    call,
    decision_keys,
    wrong,
)

POLICY_COLUMNS = frozenset(
    {
        *("proximal.logp", "proximal.entropy", "proximal.value"),
        *("current.logp", "current.entropy", "current.value"),
        *("reference.start.logp", "behavior.logp", "behavior.entropy", "key"),
    }
)
"""Columns that every run has: entropies and values on request, the policy as the run began, keys to draw random numbers from."""


class PolicyGradient:
    """One method, one policy, one rollout. `step` samples and learns once; `state` and `load_state` carry it over a stop."""

    def __init__(self, method: Method, policy: Policy, rollout: Rollout, settings: Settings, start: Policy | None = None,
                 phase: Phase | None = None, team: Team = ALONE):  # fmt: skip
        """``start`` is the policy as the run began, for methods or measurements that compare with it; ``phase`` the steps of the
        run in which the method learns, if not all; ``team`` the processes that learn together."""
        estimator.check(method, POLICY_COLUMNS | rollout.provides)
        _check_tasks(method, rollout)
        check_curriculum(method, settings)
        self.method, self.policy, self.rollout, self.settings = method, policy, rollout, settings
        self.phase = phase or Phase(steps=settings.steps or 1)
        self.references = References(method, policy, start, settings.seed)
        self.team = team
        self.views = PolicyViews(policy, self.references, bool(settings.watch_kl), getattr(rollout, "reference_cache", None), team)
        self.states: dict[str, State] = {path: call(method, part, part.init) for path, part in _stateful(method)}
        self.optimizer_step = OptimizerStep(method, policy, self.views, settings, self.phase)
        self.last: Trajectories | None = None
        """The rows the last step learned from, annotated: for logs."""
        self.traced: TracedStep | None = None
        """The last step token by token, if the settings have it recorded."""

    @property
    def tasks(self) -> TaskRollout:
        """The rollout, of which this method asks what only one over many tasks can do."""
        return cast(TaskRollout, self.rollout)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.optimizer_step.optimizer

    @property
    def nonfinite_update(self) -> NonFiniteUpdate | None:
        """Rows of the last step whose gradient was not finite, if they are worth keeping."""
        return self.optimizer_step.nonfinite_update

    # -- one step ------------------------------------------------------------------------------------------------------

    def step(self, step: int) -> Metrics:
        """Samples, learns, remembers; the metrics of the step."""
        self.optimizer_step.begin(step)
        progress = self.phase.progress(step)
        method = self.method.with_knobs(self._knobs(progress))
        self.references.renew(method, self.states, step, progress)
        if not self.policy.independent_decisions:  # whose gradients are small, and some lie in a place of their own
            self.optimizer.zero_grad(set_to_none=True)  # sampling has the room
        began = time.perf_counter()
        sampled, rows = self._collect(method, step, progress)
        sampled_at = time.perf_counter()
        metrics, further = sampling_metrics(sampled, rows), Metrics()
        if method.data:
            sampled, rows, further = self._with_data(method, sampled, step)
        metrics |= self.rollout.metrics() | further  # what was sampled further counts in this step
        for part in (*method.reward, *method.data):
            metrics |= call(method, part, cast(Any, part).metrics, sampled)
        self.team.tell("learn", lambda: packed_lesson(Lesson(step, self.states, rows, sampled)))
        with self.team.together():
            rows, trace, found = self._learn_from(method, rows, step, sampled)
        metrics = (component_metrics(rows) if rows.rows else {}) | metrics | found
        self.last = rows if rows.rows else None
        self.traced = TracedStep(sampled, rows, trace.columns, trace.noted) if trace else None
        remembered = with_advantage(sampled, rows)
        for path, part in _stateful(method):
            learned = rows if isinstance(part, Data) else remembered
            self.states[path] = call(method, part, part.update, self.states[path], learned, metrics)
        self.rollout.sync()
        ended = time.perf_counter()
        # A rollout knows better where rows hold older decisions.
        tokens = metrics.get("tokens", float(sampled.sampled.sum())) + metrics.get("further_tokens", 0.0)
        return metrics | {
            "samples": metrics.get("samples", float(sampled.rows)) + metrics.get("further_samples", 0.0),
            "tokens": tokens,
            "seconds": ended - began,
            "seconds_sampling": sampled_at - began + metrics.pop("seconds_further", 0.0),
            "tokens_per_second": tokens / max(ended - began, 1e-9),
        }

    def follow(self, lesson: Lesson) -> None:
        """Learns what the first process of the team learns in a step, from the rows that it gathered."""
        self.optimizer_step.begin(lesson.step)
        self.states = lesson.states
        progress = self.phase.progress(lesson.step)
        method = self.method.with_knobs(self._knobs(progress))
        self.references.renew(method, self.states, lesson.step, progress)
        rows, sampled = (estimator.bind(method, self.states, each) for each in (lesson.rows, lesson.sampled))
        with self.team.together():
            self._learn_from(method, rows, lesson.step, sampled)

    def _learn_from(
        self, method: Method, rows: Trajectories, step: int, sampled: Trajectories
    ) -> tuple[Trajectories, TokenTrace | None, Metrics]:
        """The rows as they were learned from, what the updates showed of their tokens if that is recorded, and metrics.

        Args:
            sampled: All that were sampled, filtered out or not.
        """
        groups = torch.unique(torch.cat([sampled.group, rows.group]))
        told: Metrics = {}
        if rows.rows:
            rows = self.views.before_step(method, rows, self._leaves_proximal(method, rows))
            rows = estimator.annotate(method, rows)
            told = call(method, method.advantage, method.advantage.metrics, rows) if method.advantage is not None else {}
            rows = rows.keep_rows(estimator.kept(method, rows, late=True))
            rows = self.views.after_filters(method, rows)
        tells_kl = bool(rows.rows) and not self._leaves_proximal(method, rows) and self.views.update_tells_kl(method, rows)
        metrics = told
        # Where filters leave nothing, other rows may still be learned from (terms), and controllers ask how far the policy is.
        if not tells_kl:
            metrics |= self.views.kl_to_start(rows if rows.rows else self.views.compared(method, sampled), method)
        trace = TokenTrace(rows) if self.settings.record != "none" and self.rollout.traced else None
        if rows.rows or any(self._aside(term, rows) for _, term in method.terms):
            metrics |= self._learn(method, rows, step, trace, groups, tells_kl)
            self.optimizer_step.check_weights(rows)
            self.optimizer_step.check_agreement(self.team)
            if in_parts(self.policy):  # whoever samples, evaluates and saves has it whole
                cast(Any, self.policy).gather()
        return rows, trace, metrics

    @staticmethod
    def _aside(term: LossTerm, rows: Trajectories) -> Trajectories | None:
        """The rows put aside for a term; none where there is not one."""
        found = rows.aside.get(term.source)
        return found if found is not None and found.rows else None

    def _beside(self, method: Method, rows: Trajectories) -> list[BesideRows]:
        """The terms that learn in the step's own updates, with their rows as the policy sees them before the first."""
        found = []
        for name, term in method.terms:
            if term.when == "with" and (aside := self._aside(term, rows)) is not None:
                own = term.as_method(name, method)
                aside = aside.replace(state=rows.state, memory=rows.memory, progress=rows.progress)
                aside = self.views.before_step(own, aside, self._leaves_proximal(method, rows))
                aside = self.views.after_filters(own, estimator.annotate(own, aside))
                found.append(BesideRows(RowLoss(own, name, term.scale), aside))
        return found

    def _leaves_proximal(self, method: Method, rows: Trajectories) -> bool:
        """Whether the policy leaves the proximal one before the step's last update."""
        if any(term.when == "before" and term.source in rows.aside for _, term in method.terms):
            return True
        several = (self.settings.passes or 1) * (self.settings.updates_per_step or 1) > 1
        return several or self.policy.independent_decisions  # these are cut by the size of an update

    def _with_data(self, method: Method, sampled: Trajectories, step: int) -> tuple[Trajectories, Trajectories, Metrics]:
        """The sampled rows as the data parts left them, all rows that pass the filters, and what further turns took."""
        rows, context = sampled, LearnerContext(method, self.views.alone(), self.tasks, step, self.settings.seed)
        for number, part in enumerate(method.data):
            rows = call(method, part, part, rows, context.of_part(f"data.{number}", rows))
            if not isinstance(rows, Trajectories):
                raise wrong(method, part, rows, "the rows, with what it adds to them")
        rows = context.with_unlearned(rows)
        # Where the rollout samples nothing, its rows are those that others wrote.
        source = Source.FRESH if bool(rows.fresh().any()) else Source.DEMONSTRATED
        own, keep = rows.of_source(source), estimator.kept(method, rows, late=False)
        kept_rows = float((own & keep).sum()) / max(int(own.sum()), 1)
        return rows.keep_rows(own), rows.keep_rows(keep), context.metrics() | {"kept_rows": kept_rows}

    def _knobs(self, progress: float) -> dict[str, float]:
        knobs: dict[str, float] = {}
        for path, part in _stateful(self.method):
            if isinstance(part, Controller):
                knobs |= call(self.method, part, part.knobs, self.states[path], progress)
        return knobs

    def _collect(self, method: Method, step: int, progress: float) -> tuple[Trajectories, Trajectories]:
        """All rows that were sampled, and those that pass the filters; refills while a filter asks for it."""
        refills = [part for part in method.filter if part.refill]
        rounds = max((part.rounds for part in refills), default=1)
        everything: list[Trajectories] = []
        kept: list[Trajectories] = []
        wanted = missing = self.settings.tasks_per_step or 0
        self._assign_ahead(method, step)
        for attempt in range(rounds):
            if attempt:
                self.rollout.assign(self._request(method, step, attempt, missing, step))
            batch = self.rollout.take(step, attempt).replace(progress=progress, now=step - 1)
            batch = self._with_keys_and_rewards(method, batch, step, attempt)
            everything.append(batch)
            kept.append(batch.keep_rows(estimator.kept(method, batch, late=False)))
            missing = wanted - sum(piece.group_index()[1] for piece in kept if piece.rows)
            if missing <= 0 or not refills:
                break
        full = [piece for piece in kept if piece.rows] or kept[:1]
        return self._joined(everything), self._joined(full)

    def _assign_ahead(self, method: Method, step: int) -> None:
        """Has the rows of this step, and of as many more of its phase as may be under way, sampled with the policy as it is now."""
        tasks = self.settings.tasks_per_step or 0
        for ahead in range(step, max(step, min(step + self.settings.max_staleness, self.phase.last)) + 1):
            if not self.rollout.assigned(ahead):
                self.rollout.assign(self._request(method, ahead, 0, tasks, step))

    def _request(self, method: Method, step: int, attempt: int, tasks: int, now: int) -> RolloutRequest:
        """What is asked of the rollout for a step, decided in the step that is ``now``."""
        curriculum, choosing = method.curriculum, None
        if curriculum is not None:
            progress = (step - 1) / max(self.settings.steps or 1, 1)
            decide, kept = Ordering(method, self.states, progress), kept_problems(method, self.states)
            choosing = Choosing(curriculum.candidates, decide, kept)
        wanted = tasks if attempt or choosing is not None else None
        return RolloutRequest(step, attempt, wanted, version=now - 1, choosing=choosing)

    def _with_keys_and_rewards(self, method: Method, batch: Trajectories, step: int, attempt: int) -> Trajectories:
        """A sampled batch with what parts may ask of it from the start: keys to draw from, states, the method's own rewards."""
        first = torch.arange(batch.rows, device=batch.sampled.device) * 0x2545F4914F6CDD1D
        seeds = first + mix(self.settings.seed, "keys", step, attempt)
        batch = batch.replace(key=decision_keys(seeds, batch.sampled.shape[1]))
        return estimator.score(method, estimator.bind(method, self.states, batch), late=False)

    def _joined(self, batches: list[Trajectories]) -> Trajectories:
        return batches[0] if len(batches) == 1 else self.tasks.join(batches)

    # -- learning ------------------------------------------------------------------------------------------------------

    def updater(
        self, method: Method, beside: Sequence[BesideRows] = (), groups: Tensor | None = None, tells_kl: bool = False
    ) -> Updater:
        """How updates are made: on single decisions if policy and method allow it, else on rows in slices.

        An update holds whole units of what the method must see at once, so a ratio of sequences is not cut into decisions, and
        neither is what a mean per sequence averages.
        """
        alone = estimator.slice_scope(method) == "decision" and not estimator.filled(method.aggregate).by_row
        if self.policy.independent_decisions and alone and not beside:
            policy = cast(DecisionPolicy, self.policy)
            return DecisionUpdater(method, policy, self.views, self.optimizer_step, self.settings)
        return RowUpdater(method, self.views, self.optimizer_step, self.settings, beside, groups, tells_kl=tells_kl)

    def _learn(
        self, method: Method, rows: Trajectories, step: int, trace: TokenTrace | None, groups: Tensor, tells_kl: bool
    ) -> Metrics:
        """All updates of a step."""
        lr = self.optimizer_step.set_learning_rate()
        updater = self.updater(method, self._beside(method, rows), groups, tells_kl)
        metrics = self._learn_terms(method, rows, "before")
        sums, updates = self._passes(method, updater, trace.rows if trace else rows, step, trace)
        metrics |= self._learn_terms(method, rows, "after")
        return metrics | sums.means(self.team) | {"lr": lr, "updates": float(updates)}

    def _passes(
        self, method: Method, updater: Updater, rows: Trajectories, step: int, trace: TokenTrace | None
    ) -> tuple[MetricSums, int]:
        """The passes over the rows, until all are made or a controller ends them; and how many updates that were."""
        sums, updates = MetricSums(), 0
        for number in range(self.settings.passes or 1):
            for share in updater.shares(rows, generator(self.settings.seed, "order", step, number)):
                shown = MetricSums() if method.controller else sums
                updater.update(share, updates, shown, trace)
                updates += 1
                if method.controller:
                    sums.merge(shown)
                    means = shown.means(self.team)
                    if any(call(method, part, part.ends_passes, means) for part in method.controller):
                        return sums, updates
        return sums, updates

    def _learn_terms(self, method: Method, rows: Trajectories, when: str) -> Metrics:
        """One update for each further term of that time, on the rows put aside for it."""
        metrics: Metrics = {}
        for name, term in method.terms:
            if term.when != when or (aside := self._aside(term, rows)) is None:
                continue
            own, sums = term.as_method(name, method), MetricSums()
            aside = estimator.annotate(own, aside.replace(state=rows.state, memory=rows.memory))
            updater = RowUpdater(own, self.views, self.optimizer_step, self.settings, scale=term.scale)
            updater.update(aside, aside.draw, sums)
            metrics |= {f"{name}_{key}": value for key, value in sums.means(self.team).items()}
        return metrics

    # -- carrying over a stop --------------------------------------------------------------------------------------------

    def before_checkpoint(self) -> None:
        """Nothing to do: rollouts restart behind it."""

    def state(self) -> State:
        """Optimiser, part states and the rollout's own: all but the policy's weights.

        Of a policy in parts every process of the team takes part, and only the first gets all of it.
        """
        if in_parts(self.policy):
            self.team.tell("state", dict)
            with self.team.together():
                return self._state()
        return self._state()

    def _state(self) -> State:
        kept: State = {"optimizer": self.optimizer_step.state(), "parts": self.states, "rollout": self.rollout.state()}
        kept |= {"references": self.references.state(), "skipped": self.optimizer_step.skipped}
        slices = getattr(self.policy, "slices", None)
        return kept | ({"slice_tokens": slices.tokens} if slices is not None and slices.tokens else {})

    def load_state(self, state: State) -> None:
        self.optimizer_step.load_state(state["optimizer"])
        missing = set(self.states) - set(state["parts"])
        if missing:
            raise UserError(f"the checkpoint holds no state for {', '.join(sorted(missing))}; it belongs to another method.")
        self.states = {path: state["parts"][path] for path in self.states}
        self.rollout.load_state(state["rollout"])
        self.references.load_state(state["references"] if "references" in state else of_older_checkpoint(state["sight"]))
        self.optimizer_step.skipped = state.get("skipped", 0)
        if "slice_tokens" in state:  # memory may have run out since the run began
            cast(Any, self.policy).slices.tokens = int(state["slice_tokens"])


def _check_tasks(method: Method, rollout: Rollout) -> None:
    """Refuses what only a rollout over many tasks can do (`TaskRollout`), where there is one environment."""
    asks = {
        "a filter that samples other tasks in place of what it drops": any(part.refill for part in method.filter),
        "a curriculum, which chooses among tasks": method.curriculum is not None,
        "data parts, which join rows of several sources": bool(method.data),
    }
    for what, asked in asks.items():
        if asked and not hasattr(rollout, "join"):
            raise MethodError(
                f"{method.name} has {what}; an environment is one task, and its rollouts are not joined. Whole episodes are: "
                "--set rollout=Episodes."
            )


def _stateful(method: Method) -> list[tuple[str, Any]]:
    return list(estimator.stateful(method).items())
