"""The learner of every policy-gradient method: it samples, asks the method for a loss per decision, and optimises.

It knows no method's name. What differs between a language model and a controller is the policy's ``cut`` (rows or single
decisions) and the rollout; the objective code is the same.
"""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from upslope.errors import UserError
from upslope.learners.slicing import pack, share_decisions, share_groups
from upslope.learners.tally import Tally
from upslope.objective import estimator
from upslope.objective.base import Controller, State
from upslope.objective.ratio import LOG_LIMIT, raw_log_ratio
from upslope.objective.regularize import kl_estimate
from upslope.runtime.seeding import generator, mix
from upslope.runtime.settings import Settings
from upslope.types import Method, Metrics, Scope, Trajectories, View, decision_keys

POLICY_COLUMNS = frozenset(
    {
        *("proximal.logp", "proximal.entropy", "proximal.value"),
        *("current.logp", "current.entropy", "current.value"),
        *("reference.start.logp", "behavior.entropy", "key"),
    }
)
"""What any policy can give: entropies and values on request, and the policy as the run began."""

WATCHED_ROWS = 64
"""Rows on which the KL to the start is measured when the method itself does not need it."""


class Policy(Protocol):
    """What a learner asks of a policy."""

    cut: str

    def evaluate(self, rows: Trajectories, needs: frozenset[str] = ...) -> View: ...
    def slice_tokens(self, rows: Trajectories) -> Tensor: ...
    def token_budget(self) -> int: ...
    def trainable(self) -> dict[str, list[nn.Parameter]]: ...
    def add_value_head(self, seed: int) -> None: ...
    def frozen_copy(self) -> Any: ...


class Rollout(Protocol):
    """What a learner asks of a rollout."""

    provides: frozenset[str]

    resumes_anywhere: bool

    def collect(self, step: int) -> Trajectories: ...
    def refill(self, step: int, attempt: int, tasks: int) -> Trajectories: ...
    def join(self, batches: list[Trajectories]) -> Trajectories: ...
    def metrics(self) -> Metrics: ...
    def sync(self) -> None: ...
    def restart(self, step: int) -> None: ...
    def state(self) -> State: ...
    def load_state(self, state: State) -> None: ...


class PolicyGradient:
    """One method, one policy, one rollout. `step` samples and learns once; `state` and `load_state` carry it over a stop."""

    def __init__(self, method: Method, policy: Policy, rollout: Rollout, settings: Settings, start: Any = None):
        """``start`` is the policy as the run began, for methods or measurements that compare with it."""
        estimator.check(method, POLICY_COLUMNS | rollout.provides)
        self.method, self.policy, self.rollout, self.settings, self.start = method, policy, rollout, settings, start
        self.states: dict[str, State] = {path: part.init() for path, part in estimator.remembering(method).items()}
        self.optimizer = self._make_optimizer()
        self.last: Trajectories | None = None
        """The rows the last step learned from, annotated: for logs."""

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
        betas = (0.9, float(self.settings.adam_beta2 or 0.999))
        eps = float(self.settings.adam_eps or 1e-8)
        return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, weight_decay=self.settings.weight_decay, fused=True)

    # -- one step ------------------------------------------------------------------------------------------------------

    def step(self, step: int) -> Metrics:
        """Samples, learns, remembers; the metrics of the step."""
        progress = (step - 1) / max(self.settings.steps or 1, 1)
        method = self.method.with_knobs(self._knobs(progress))
        began = time.perf_counter()
        everything, rows = self._collect(method, step, progress)
        sampled_at = time.perf_counter()
        metrics = _sampling_metrics(everything, rows) | self.rollout.metrics()
        if rows.rows:
            rows = self._look(method, rows)
            rows = estimator.annotate(method, rows)  # type: ignore[assignment]
            rows = _only(rows, estimator.kept(method, rows, late=True))
            metrics = _component_metrics(rows) | metrics  # with those that had to wait for the policy's columns
            metrics |= self._kl_to_start(rows)
            metrics |= self._learn(method, rows, step)
            self.last = rows
        for path, part in estimator.remembering(method).items():
            self.states[path] = part.update(self.states[path], everything, metrics)
        self.rollout.sync()
        ended = time.perf_counter()
        tokens = float(everything.sampled.sum())
        return metrics | {
            "tokens": tokens,
            "seconds": ended - began,
            "seconds_sampling": sampled_at - began,
            "tokens_per_second": tokens / max(ended - began, 1e-9),
        }

    def _knobs(self, progress: float) -> dict[str, float]:
        knobs: dict[str, float] = {}
        for path, part in estimator.remembering(self.method).items():
            if isinstance(part, Controller):
                knobs |= part.knobs(self.states[path], progress)
        return knobs

    def _collect(self, method: Method, step: int, progress: float) -> tuple[Trajectories, Trajectories]:
        """All rows that were sampled, and those that pass the filters; refills while a filter asks for it."""
        refills = [part for part in method.filter if part.refill]
        rounds = max((part.rounds for part in refills), default=1)
        everything: list[Trajectories] = []
        kept: list[Trajectories] = []
        wanted = missing = self.settings.tasks_per_step
        for attempt in range(rounds):
            batch = self.rollout.refill(step, attempt, missing) if attempt else self.rollout.collect(step)
            batch = self._known(method, batch.replace(progress=progress), step, attempt)
            everything.append(batch)
            kept.append(_only(batch, estimator.kept(method, batch, late=False)))
            missing = wanted - sum(piece.group_index()[1] for piece in kept if piece.rows)
            if missing <= 0 or not refills:
                break
        full = [piece for piece in kept if piece.rows] or kept[:1]
        return self._joined(everything), self._joined(full)

    def _known(self, method: Method, batch: Trajectories, step: int, attempt: int) -> Trajectories:
        """A sampled batch with what parts may ask of it from the start: keys to draw from, states, the method's own rewards."""
        first = torch.arange(batch.rows, device=batch.sampled.device) * 0x2545F4914F6CDD1D
        seeds = first + mix(self.settings.seed, "keys", step, attempt)
        batch = batch.replace(key=decision_keys(seeds, batch.sampled.shape[1]))
        return estimator.score(method, estimator.bind(method, self.states, batch), late=False)  # type: ignore[return-value]

    def _joined(self, batches: list[Trajectories]) -> Trajectories:
        return batches[0] if len(batches) == 1 else self.rollout.join(batches)

    def _look(self, method: Method, rows: Trajectories) -> Trajectories:
        """One pass without gradient for the columns that parts read before the update."""
        needs = method.needs()
        updates = (self.settings.passes or 1) * max(self.settings.updates_per_step or 0, 1)
        early = frozenset(need.split(".")[1] for need in needs if need.startswith("proximal."))
        moves = updates > 1 or self.policy.cut == "decision"
        if rows.proximal is None and (early or (moves and method.ratio.branches())):
            seen = torch.arange(rows.rows) if early else estimator.rows_with_signal(method, rows)
            rows = rows.replace(proximal=self._columns(self.policy, rows, early - {"logp"}, seen))
        if "reference.start.logp" in needs:
            rows = rows.replace(reference={"start": self._columns(self.start, rows, frozenset())})
        return rows

    def _columns(self, policy: Any, rows: Trajectories, needs: frozenset[str], seen: Tensor | None = None) -> View:
        """Columns of a policy, without gradient; rows that are not among ``seen`` stay zero."""
        cost = policy.slice_tokens(rows)
        found: dict[str, Tensor] = {"logp": torch.zeros_like(rows.sampled)}
        with torch.no_grad():
            for index in pack(rows, torch.arange(rows.rows) if seen is None else seen, cost, policy.token_budget(), "sequence"):
                for name, column in policy.evaluate(rows.take_rows(index), needs).columns().items():
                    found.setdefault(name, torch.zeros(rows.sampled.shape, dtype=column.dtype, device=column.device))[index] = (
                        column
                    )
        return View.of(found)

    def _kl_to_start(self, rows: Trajectories) -> Metrics:
        """Of the policy that sampled. Its recorded log-probabilities are used: the proximal ones may lack rows without signal."""
        if "start" in rows.reference:
            seen, start = rows, rows.reference["start"]
        elif self.settings.watch_kl and self.start is not None:
            seen = rows.take_rows(torch.linspace(0, rows.rows - 1, min(rows.rows, WATCHED_ROWS)).long().unique())
            start = self._columns(self.start, seen, frozenset())
        else:
            return {}
        kl = kl_estimate(seen.behavior.logp, start.logp, "k3") * seen.sampled
        return {"kl_start": float(kl.sum() / seen.sampled.sum().clamp_min(1))}

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn(self, method: Method, rows: Trajectories, step: int) -> Metrics:
        lr = learning_rate(self.settings, step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        needs = frozenset(need.split(".")[1] for need in method.needs() if need.startswith("current.")) - {"logp"}
        scope = estimator.slice_scope(method)
        tally, updates = Tally(), 0
        for number in range(self.settings.passes or 1):
            for share in self._shares(rows, step, number):
                told = self._update(method, share.replace(draw=updates), needs, scope)
                tally.merge(told)
                updates += 1
                if method.controller and any(controller.ends_passes(told.means()) for controller in method.controller):
                    return tally.means() | {"lr": lr, "updates": float(updates)}
        return tally.means() | {"lr": lr, "updates": float(updates)}

    def _shares(self, rows: Trajectories, step: int, number: int) -> list[Trajectories]:
        order = generator(self.settings.seed, "order", step, number)
        cuts = self.settings.updates_per_step
        if self.policy.cut != "decision":
            return share_groups(rows, cuts or 1, order)
        return share_decisions(rows, math.ceil(int(rows.sampled.sum()) / cuts) if cuts else self.settings.minibatch, order)

    def _update(self, method: Method, rows: Trajectories, needs: frozenset[str], scope: Scope) -> Tally:
        """One optimiser step on these rows, slice by slice."""
        rows = self._look_ahead(method, rows)
        batch: Trajectories = estimator.begin_update(method, rows).replace(current=None)  # type: ignore[assignment]
        tally = Tally()
        tally.add("learning", 0.0, batch.sampled.sum())
        live = (~estimator.silent_rows(method, batch)).nonzero().squeeze(1)
        if not len(live):  # Adam would move even on zeros
            tally.add("empty_updates", 1.0, 1.0)
            return tally
        self.optimizer.zero_grad(set_to_none=True)
        if self.policy.cut == "decision":
            slices = [live]
        else:
            slices = pack(batch, live, self.policy.slice_tokens(batch), self.policy.token_budget(), scope)
        for index in slices:
            self._slice(method, batch if len(index) == batch.rows else batch.take_rows(index), needs, tally)
        self._move(tally)
        return tally

    def _look_ahead(self, method: Method, rows: Trajectories) -> Trajectories:
        """The current policy's columns, without gradient, for parts that read them before the update is cut."""
        early = estimator.early_columns(method)
        if not early:
            return rows
        if rows.draw == 0 and rows.proximal is not None and early <= set(rows.proximal.columns()):
            return rows.replace(current=rows.proximal)  # nothing has moved yet
        return rows.replace(current=self._columns(self.policy, rows, early - {"logp"}))

    def _slice(self, method: Method, piece: Trajectories, needs: frozenset[str], tally: Tally) -> None:
        """Backward pass of one slice. The objective sees detached columns; their gradients then go through the policy."""
        view = self.policy.evaluate(piece, needs)
        leaves = view.map(lambda column: column.detach().requires_grad_())
        proximal = piece.proximal or view.map(Tensor.detach)
        piece = piece.replace(current=leaves, proximal=proximal)
        losses, notes = estimator.decision_losses(method, piece)
        columns = leaves.columns()
        gradients = torch.autograd.grad(losses.sum(), list(columns.values()), allow_unused=True)
        pairs = [(view.columns()[name], slope) for name, slope in zip(columns, gradients, strict=True) if slope is not None]
        torch.autograd.backward([column for column, _ in pairs], [slope for _, slope in pairs])
        with torch.no_grad():
            _tally_slice(tally, piece, losses, notes, gradients[0])

    def _move(self, tally: Tally) -> None:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        limit = self.settings.grad_clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        finite = bool(norm.isfinite())
        tally.add("skipped_updates", float(not finite), 1.0)
        if finite:  # one infinite gradient would destroy the policy for good
            tally.add("grad_norm", norm.detach(), 1.0)
            self.optimizer.step()

    # -- carrying over a stop --------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Optimiser, part states and the rollout's own: all but the policy's weights."""
        return {"optimizer": self.optimizer.state_dict(), "parts": self.states, "rollout": self.rollout.state()}

    def load_state(self, state: State) -> None:
        saved = state["optimizer"]
        slots = {int(key): value for key, value in saved["state"].items()}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
        missing = set(self.states) - set(state["parts"])
        if missing:
            raise UserError(f"the checkpoint holds no state for {', '.join(sorted(missing))}; it belongs to another method.")
        self.states = {path: state["parts"][path] for path in self.states}
        self.rollout.load_state(state["rollout"])


def learning_rate(settings: Settings, step: int) -> float:
    """Learning rate of a step (the first is 1): a linear rise over the warm-up, then the schedule down to the floor."""
    lr, steps, warmup = settings.lr or 0.0, settings.steps or 1, settings.warmup or 0
    if step <= warmup:
        return lr * step / warmup
    floor = settings.lr_floor or 0.0
    left = 1 - (step - 1 - warmup) / max(steps - warmup, 1)
    shape = {"constant": 1.0, "linear": left, "cosine": 0.5 * (1 - math.cos(math.pi * left))}[settings.schedule or "linear"]
    return lr * (1.0 if settings.schedule == "constant" else floor + (1 - floor) * shape)


def _only(batch: Trajectories, keep: Tensor) -> Trajectories:
    if bool(keep.all()):
        return batch
    chosen = keep.nonzero().squeeze(1)
    return batch.take_rows(chosen).replace(info=[batch.info[i] for i in chosen.tolist()] if batch.info else [])


def _sampling_metrics(everything: Trajectories, rows: Trajectories) -> Metrics:
    decisions = everything.sampled.sum().clamp_min(1)
    metrics = {"kept_rows": rows.rows / max(everything.rows, 1)}
    if everything.behavior.entropy is not None:
        metrics["entropy"] = float((everything.behavior.entropy * everything.sampled).sum() / decisions)
    metrics |= _component_metrics(everything)
    if "task" in everything.components:
        metrics["reward"] = float(everything.components["task"].mean())
        metrics["constant_groups"] = float(everything.group_stats(everything.components["task"]).constant.float().mean())
        metrics["length"] = float(everything.lengths().mean())
    return metrics


def _component_metrics(rows: Trajectories) -> Metrics:
    return {f"reward_{name}": float(values.mean()) for name, values in rows.components.items() if name != "task"}


def _tally_slice(tally: Tally, piece: Trajectories, losses: Tensor, notes: dict[str, Tensor], slope: Tensor | None) -> None:
    on = piece.sampled > 0
    count = piece.sampled.sum()
    clipped = [notes[name] for name in ("clipped_high", "clipped_low") if name in notes]
    if clipped:
        notes = {**notes, "clip_fraction": torch.stack(clipped).any(0)}
    for name, column in notes.items():
        tally.add(name, (column & on).sum(), count)
    if slope is not None:
        tally.add("learning", ((slope != 0) & on).sum(), 0.0)
    raw = raw_log_ratio(piece)
    log = torch.where(raw.isnan(), 0.0, raw).clamp(-LOG_LIMIT, LOG_LIMIT)
    tally.add("limited", ((raw.isnan() | (raw.abs() > LOG_LIMIT)) & on).sum(), count)
    tally.add("log_ratio", log.abs().sum(), count)
    tally.add("kl_proximal", ((log.exp() - 1 - log) * on).sum(), count)
    assert piece.advantage is not None
    tally.add("advantage_positive", ((piece.advantage > 0) & on).sum(), count)
    tally.add("loss", losses.sum(), 1.0)
