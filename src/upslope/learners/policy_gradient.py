"""The learner of every policy-gradient method: it samples, asks the method for a loss per decision, and optimises.

It knows no method's name. What differs between a language model and a controller is the policy's ``cut`` (rows or single
decisions) and the rollout; the objective code is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from upslope.errors import UserError
from upslope.learners.adam import Adam
from upslope.learners.judging import Judge, Told, column_slopes, leaf
from upslope.learners.nonfinite import IN_A_ROW, NonFinite, Offence, broken_weights, length, offence
from upslope.learners.sight import DecisionPolicy, Policy, Sight
from upslope.learners.slicing import Share, only, pack, share_decisions, share_groups
from upslope.learners.tally import Tally, component_metrics, sampling_metrics
from upslope.learners.witness import Seen, Witness
from upslope.objective import estimator
from upslope.objective.base import Controller, Data, State
from upslope.runtime import torch_private
from upslope.runtime.seeding import generator, mix
from upslope.runtime.settings import Settings
from upslope.types import Method, Metrics, Scope, Trajectories, View, call, decision_keys, wrong

POLICY_COLUMNS = frozenset(
    {
        *("proximal.logp", "proximal.entropy", "proximal.value"),
        *("current.logp", "current.entropy", "current.value"),
        *("reference.start.logp", "behavior.entropy", "key"),
    }
)
"""What any policy can give: entropies and values on request, and the policy as the run began."""


class Rollout(Protocol):
    """What a learner asks of a rollout."""

    provides: frozenset[str]

    resumes_anywhere: bool

    def collect(self, step: int) -> Trajectories: ...
    def refill(self, step: int, attempt: int, tasks: int) -> Trajectories: ...
    def choose(self, step: int, attempt: int, tasks: int, candidates: int, weigh: Callable[[Tensor], Tensor]) -> Trajectories: ...
    def teacher(self, rows: Trajectories) -> Trajectories: ...
    def join(self, batches: list[Trajectories]) -> Trajectories: ...
    def metrics(self) -> Metrics: ...
    def sync(self) -> None: ...
    def restart(self, step: int) -> None: ...
    def state(self) -> State: ...
    def load_state(self, state: State) -> None: ...


class Helping:
    """What a learner does for data parts (`Outside`); ``method`` is as the step's knobs have it."""

    def __init__(self, learner: PolicyGradient, method: Method):
        self.learner, self.method = learner, method

    def look(self, rows: Trajectories, columns: frozenset[str]) -> View:
        learner = self.learner
        return learner.sight.columns(self.method, learner.policy, rows, columns - {"logp"})

    def teacher(self, rows: Trajectories) -> Trajectories:
        """Scored as sampled rows are: the method's own early rewards change these too."""
        taught = self.learner.rollout.teacher(rows).replace(state=rows.state, memory=rows.memory, progress=rows.progress)
        return estimator.score(self.method, taught, late=False)  # type: ignore[return-value]

    def join(self, batches: list[Trajectories]) -> Trajectories:
        return self.learner.rollout.join(batches)


class PolicyGradient:
    """One method, one policy, one rollout. `step` samples and learns once; `state` and `load_state` carry it over a stop."""

    def __init__(self, method: Method, policy: Policy, rollout: Rollout, settings: Settings, start: Any = None):
        """``start`` is the policy as the run began, for methods or measurements that compare with it."""
        estimator.check(method, POLICY_COLUMNS | rollout.provides)
        self.method, self.policy, self.rollout, self.settings = method, policy, rollout, settings
        self.sight = Sight(method, policy, start, bool(settings.watch_kl))
        self.states: dict[str, State] = {path: call(method, part, part.init) for path, part in _memories(method)}
        self.optimizer = self._make_optimizer()
        self.last: Trajectories | None = None
        """The rows the last step learned from, annotated: for logs."""
        self.seen: Seen | None = None
        """The last step token by token, if the settings have it recorded."""
        self.at, self.skipped = 0, 0
        """The step under way, and updates in a row whose gradient was not finite, up to now."""
        self.offence: Offence | None = None
        """Rows of the last step that began or ended such a series."""
        self._check_weights(None)

    @staticmethod
    def needs_start(method: Method, settings: Settings) -> bool:
        """Whether a copy of the first policy must be kept."""
        return bool(settings.watch_kl) or any(need.startswith("reference.start.") for need in method.needs())

    def _make_optimizer(self) -> torch.optim.Optimizer:
        scales = {name: getattr(model, "lr_scale", 1.0) for name, model in self.method.models}
        groups = [
            {"params": parameters, "name": name, "scale": scales.get(name, 1.0)}
            for name, parameters in self.policy.trainable().items()
            if parameters
        ]
        beta2, eps = self.settings.adam_beta2, self.settings.adam_eps
        betas, eps = (0.9, 0.999 if beta2 is None else float(beta2)), 1e-8 if eps is None else float(eps)
        make = Adam if self.policy.cut == "decision" else torch.optim.AdamW
        return make(groups, lr=0.0, betas=betas, eps=eps, weight_decay=self.settings.weight_decay, fused=True)

    # -- one step ------------------------------------------------------------------------------------------------------

    def step(self, step: int) -> Metrics:
        """Samples, learns, remembers; the metrics of the step."""
        self.at, self.offence = step, None
        progress = (step - 1) / max(self.settings.steps or 1, 1)
        method = self.method.with_knobs(self._knobs(progress))
        self.sight.renew(method, self.states, step, progress)
        began = time.perf_counter()
        sampled, rows = self._collect(method, step, progress)
        sampled_at = time.perf_counter()
        metrics = sampling_metrics(sampled, rows) | self.rollout.metrics()
        if method.data:
            sampled, rows = self._with_data(method, sampled)
        if rows.rows:
            rows = self.sight.look(method, rows, self._moves(method, rows))
            rows = estimator.annotate(method, rows)  # type: ignore[assignment]
            rows = only(rows, estimator.kept(method, rows, late=True))
            metrics = component_metrics(rows) | metrics  # with those that had to wait for the policy's columns
            metrics |= self.sight.kl_to_start(rows, method)
            witness = self._witness(rows)
            metrics |= self._learn(method, rows, step, witness)
            self._check_weights(rows)
            self.last = rows
        else:
            witness, self.last = self._witness(rows), None
        self.seen = Seen(sampled, rows, witness.columns) if witness else None
        for path, part in _memories(method):
            learned = rows if isinstance(part, Data) else sampled
            self.states[path] = call(method, part, part.update, self.states[path], learned, metrics)
        self.rollout.sync()
        ended = time.perf_counter()
        tokens = metrics.get("tokens", float(sampled.sampled.sum()))  # a rollout knows better where rows hold older decisions
        return metrics | {
            "samples": float(sampled.rows) if self.policy.cut == "row" else tokens,
            "tokens": tokens,
            "seconds": ended - began,
            "seconds_sampling": sampled_at - began,
            "tokens_per_second": tokens / max(ended - began, 1e-9),
        }

    def _witness(self, rows: Trajectories) -> Witness | None:
        return Witness(rows) if self.settings.record != "none" and self.policy.cut == "row" else None

    def _moves(self, method: Method, rows: Trajectories) -> bool:
        """Whether the policy leaves the proximal one before the step's last update."""
        if any(term.when == "before" and term.source in rows.aside for _, term in method.terms):
            return True
        return (self.settings.passes or 1) * max(self.settings.updates_per_step or 0, 1) > 1 or self.policy.cut == "decision"

    def _with_data(self, method: Method, sampled: Trajectories) -> tuple[Trajectories, Trajectories]:
        """The sampled rows as the data parts left them, and all rows that pass the filters."""
        rows = sampled
        for part in method.data:
            rows = call(method, part, part, rows, Helping(self, method))
            if not isinstance(rows, Trajectories):
                raise wrong(method, part, rows, "the rows, with what it adds to them")
        return only(rows, rows.fresh()), only(rows, estimator.kept(method, rows, late=False))

    def _knobs(self, progress: float) -> dict[str, float]:
        knobs: dict[str, float] = {}
        for path, part in _memories(self.method):
            if isinstance(part, Controller):
                knobs |= call(self.method, part, part.knobs, self.states[path], progress)
        return knobs

    def _collect(self, method: Method, step: int, progress: float) -> tuple[Trajectories, Trajectories]:
        """All rows that were sampled, and those that pass the filters; refills while a filter asks for it."""
        refills = [part for part in method.filter if part.refill]
        rounds = max((part.rounds for part in refills), default=1)
        everything: list[Trajectories] = []
        kept: list[Trajectories] = []
        wanted = missing = self.settings.tasks_per_step
        for attempt in range(rounds):
            batch = self._sampled(method, step, attempt, missing)
            batch = self._known(method, batch.replace(progress=progress), step, attempt)
            everything.append(batch)
            kept.append(only(batch, estimator.kept(method, batch, late=False)))
            missing = wanted - sum(piece.group_index()[1] for piece in kept if piece.rows)
            if missing <= 0 or not refills:
                break
        full = [piece for piece in kept if piece.rows] or kept[:1]
        return self._joined(everything), self._joined(full)

    def _sampled(self, method: Method, step: int, attempt: int, tasks: int) -> Trajectories:
        if method.curriculum is None:
            return self.rollout.refill(step, attempt, tasks) if attempt else self.rollout.collect(step)
        memories = dict(method.memory)

        def weigh(candidates: Tensor) -> Tensor:
            def recall(name: str) -> Tensor:
                return memories[name].recall(self.states[f"memory.{name}"], candidates)

            return call(method, method.curriculum, method.curriculum, candidates, recall)

        return self.rollout.choose(step, attempt, tasks, method.curriculum.candidates, weigh)

    def _known(self, method: Method, batch: Trajectories, step: int, attempt: int) -> Trajectories:
        """A sampled batch with what parts may ask of it from the start: keys to draw from, states, the method's own rewards."""
        first = torch.arange(batch.rows, device=batch.sampled.device) * 0x2545F4914F6CDD1D
        seeds = first + mix(self.settings.seed, "keys", step, attempt)
        batch = batch.replace(key=decision_keys(seeds, batch.sampled.shape[1]))
        return estimator.score(method, estimator.bind(method, self.states, batch), late=False)  # type: ignore[return-value]

    def _joined(self, batches: list[Trajectories]) -> Trajectories:
        return batches[0] if len(batches) == 1 else self.rollout.join(batches)

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn(self, method: Method, rows: Trajectories, step: int, witness: Witness | None) -> Metrics:
        lr = learning_rate(self.settings, step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        needs = estimator.slice_columns(method)
        scope = estimator.slice_scope(method)
        metrics = self._learn_terms(method, rows, "before")
        judge = Judge(method, self.sight, needs)
        tally, updates, ledger = Tally(), 0, list[Told]()
        for number in range(self.settings.passes or 1):
            for share in self._shares(witness.rows if witness else rows, step, number):
                showed = Tally() if method.controller else tally
                if isinstance(share, Share):
                    ledger.append(self._update_decisions(judge, share, updates, showed))
                else:
                    self._update(method, share.replace(draw=updates), needs, scope, showed, witness)
                updates += 1
                if method.controller:
                    tally.merge(showed)
                    if isinstance(share, Share):
                        ledger[-1].add_to(showed)
                    shown = showed.means()
                    if any(call(method, part, part.ends_passes, shown) for part in method.controller):
                        break
            else:
                continue
            break
        for told in ledger:
            told.add_to(tally)
        metrics |= self._learn_terms(method, rows, "after")
        return metrics | tally.means() | {"lr": lr, "updates": float(updates)}

    def _learn_terms(self, method: Method, rows: Trajectories, when: str) -> Metrics:
        """One update for each further term of that time, on the rows put aside for it."""
        metrics: Metrics = {}
        for name, term in method.terms:
            aside = rows.aside.get(term.source)
            if term.when != when or aside is None or not aside.rows:
                continue
            own = term.as_method(name, method)
            aside = estimator.annotate(own, aside.replace(state=rows.state, memory=rows.memory))  # type: ignore[assignment]
            told = Tally()
            self._update(own, aside, estimator.slice_columns(own), estimator.slice_scope(own), told)
            metrics |= {f"{name}_{key}": value for key, value in told.means().items()}
        return metrics

    def _shares(self, rows: Trajectories, step: int, number: int) -> list[Trajectories] | list[Share]:
        order = generator(self.settings.seed, "order", step, number)
        cuts = self.settings.updates_per_step
        if self.policy.cut != "decision":
            return share_groups(rows, cuts or 1, order)
        return share_decisions(rows, math.ceil(int(rows.sampled.sum()) / cuts) if cuts else self.settings.minibatch, order)

    def _update(
        self, method: Method, rows: Trajectories, needs: frozenset[str], scope: Scope, tally: Tally, witness: Witness | None = None
    ) -> None:
        """One optimiser step on these rows, slice by slice."""
        rows = self.sight.look_ahead(method, rows)
        batch: Trajectories = estimator.begin_update(method, rows).replace(current=None)  # type: ignore[assignment]
        tally.add("learning", 0.0, batch.sampled.sum())
        live = (~estimator.silent_rows(method, batch)).nonzero().squeeze(1)
        if not len(live):  # Adam would move even on zeros
            tally.add("empty_updates", 1.0, 1.0)
            return
        self.optimizer.zero_grad(set_to_none=True)
        for index in pack(batch, live, self.policy.slice_tokens(batch), self.policy.token_budget(), scope, self.policy.pads):
            self._slice(method, batch if len(index) == batch.rows else batch.take_rows(index), needs, tally, witness)
        moved = self._move(length(self._slopes()), tally)
        # A fused optimiser does not say so itself, and what was computed with the old weights must not be used any more.
        increment_version(self._parameters())
        if not moved:
            self._skip(method, rows, needs)

    def _update_decisions(self, judge: Judge, share: Share, draw: int, tally: Tally) -> Told:
        """One optimiser step on single decisions: few enough to need no slices, and so many times that the calls count."""
        policy = cast(DecisionPolicy, self.policy)
        look = policy.look(share.inputs(), judge.needs)
        slopes, told = judge(share, look.columns, draw)
        if slopes:
            if not self._move(policy.pull(look, slopes), tally):
                self._skip(judge.method, share.rows().replace(draw=draw), judge.needs)
        else:  # Adam would move even on zeros
            tally.add("empty_updates", 1.0, 1.0)
        return told

    def _slice(
        self, method: Method, piece: Trajectories, needs: frozenset[str], tally: Tally, witness: Witness | None = None
    ) -> None:
        """Backward pass of one slice. The objective sees detached columns; their gradients then go through the policy."""
        view = self.sight.evaluate(method, self.policy, piece, needs)
        slopes = column_slopes(method, piece, view.map(leaf), tally, witness)
        columns = view.columns()
        torch.autograd.backward([columns[name] for name in slopes], list(slopes.values()))

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _slopes(self) -> list[Tensor]:
        """Gradients of the parameters that have one."""
        return [parameter.grad for parameter in self._parameters() if parameter.grad is not None]

    def _move(self, norm: float, tally: Tally) -> bool:
        """Moves the parameters along their gradients, whose length is ``norm``; not if that is not finite."""
        finite = math.isfinite(norm)
        tally.add("skipped_updates", float(not finite), 1.0)
        if not finite:  # one infinite gradient would destroy the policy for good
            self.skipped += 1
            return False
        self.skipped = 0
        tally.add("grad_norm", norm, 1.0)
        limit = self.settings.grad_clip or math.inf
        if norm > limit:  # the small number is torch's, in `clip_grad_norm_`
            torch_private.foreach_mul_(self._slopes(), limit / (norm + 1e-6))
        self.optimizer.step()
        return True

    def _skip(self, method: Method, rows: Trajectories, needs: frozenset[str]) -> None:
        """An update was skipped: the rows of the first and of the last of a series are kept, and the last is the end."""
        if self.skipped in (1, IN_A_ROW):
            self.offence = offence(method, self.sight, self.policy, rows, needs, self.at)
        self._check_weights(rows)
        if self.skipped >= IN_A_ROW:
            what = f"step {self.at}: the gradient was not finite in {IN_A_ROW} updates in a row, so none of them was made."
            raise NonFinite(what, "start anew with a lower --lr or --grad-clip, or look for what overflows in reward and method.")

    def _check_weights(self, rows: Trajectories | None) -> None:
        """Refuses to go on with weights that are not finite: no later update mends them, and no checkpoint may hold them."""
        if math.isfinite(length(self._parameters())):
            return
        if rows is None:
            raise NonFinite("the weights are not finite before the first step.", "Give another --model or checkpoint.")
        self.offence = broken_weights(self.policy, rows, self.at)
        lr = learning_rate(self.settings, self.at)
        raise NonFinite(f"step {self.at}: an update at learning rate {lr:g} left weights that are not finite or about to overflow.",
                        f"start anew with a lower --lr than {self.settings.lr:g}.")  # fmt: skip

    # -- carrying over a stop --------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Optimiser, part states and the rollout's own: all but the policy's weights."""
        kept = {"optimizer": self.optimizer.state_dict(), "parts": self.states, "rollout": self.rollout.state()}
        return kept | {"sight": self.sight.state(), "skipped": self.skipped}

    def load_state(self, state: State) -> None:
        saved = state["optimizer"]
        slots = {int(key): value for key, value in saved["state"].items()}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
        missing = set(self.states) - set(state["parts"])
        if missing:
            raise UserError(f"the checkpoint holds no state for {', '.join(sorted(missing))}; it belongs to another method.")
        self.states = {path: state["parts"][path] for path in self.states}
        self.rollout.load_state(state["rollout"])
        self.sight.load_state(state["sight"])
        self.skipped = state.get("skipped", 0)


def _memories(method: Method) -> list[tuple[str, Any]]:
    return list(estimator.remembering(method).items())


def learning_rate(settings: Settings, step: int) -> float:
    """Learning rate of a step (the first is 1): a linear rise over the warm-up, then the schedule down to the floor."""
    lr, steps, warmup = settings.lr or 0.0, settings.steps or 1, settings.warmup or 0
    if step <= warmup:
        return lr * step / warmup
    floor = settings.lr_floor or 0.0
    left = 1 - (step - 1 - warmup) / max(steps - warmup, 1)
    shape = {"constant": 1.0, "linear": left, "cosine": 0.5 * (1 - math.cos(math.pi * left))}[settings.schedule or "linear"]
    return lr * (1.0 if settings.schedule == "constant" else floor + (1 - floor) * shape)
