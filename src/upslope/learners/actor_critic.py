"""The actor-critic learner: it acts, keeps what happened, and learns from rows drawn out of what is kept.

A step is ``horizon`` ticks of the environments and ``updates_per_step`` updates spread evenly between them; while a run is offline,
updates alone. An update draws rows, fits the learned models in their order, moves the policy where that is due by the same three
calls of the estimator as every method, and lets the slowly following copies follow. It knows no method's name.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, cast

import torch
from torch import Tensor

from upslope.errors import MethodError, UserError
from upslope.learners.network_optimizers import NetworkOptimizers
from upslope.learners.nonfinite import NonFinite
from upslope.learners.references import References
from upslope.learners.value_guard import check_values
from upslope.objective import estimator
from upslope.objective.base import Controller, State
from upslope.policies.control.bound_networks import BoundNetworks
from upslope.policies.control.network_policy import POLICY, NetworkPolicy
from upslope.rollout.replay import ReplayRollout
from upslope.runtime.seeding import mix
from upslope.runtime.settings import Settings
from upslope.types import DrawnData, Learned, Method, Metrics, Part, Trajectories, call, decision_keys

PROVIDES = frozenset({"key"})
"""Columns that rows have besides those of the rollout."""


class UpdateNoise:
    """Random numbers of one update, by counter."""

    def __init__(self, seed: int, step: int, update: int, device: torch.device):
        self.seed, self.step, self.update, self.device = seed, step, update, device

    def __call__(self, kind: str, name: str, shape: tuple[int, ...]) -> Tensor:
        random = torch.Generator().manual_seed(mix(self.seed, "noise", self.step, self.update, kind, name))
        make = torch.randn if kind == "normal" else torch.rand
        return make(shape, generator=random).to(self.device)


class ActorCritic:
    """One method, one policy of networks, one rollout that remembers."""

    def __init__(self, method: Method, policy: NetworkPolicy, rollout: ReplayRollout, settings: Settings, start: Any = None):
        check(method, rollout.provides)
        self.method, self.policy, self.rollout, self.settings = method, policy, rollout, settings
        self.data = drawn_data(method)
        self.references = References(method, cast(Any, policy), start)
        self.states: dict[str, State] = {
            path: call(method, cast(Part, part), part.init) for path, part in estimator.stateful(method).items()
        }  # fmt: skip
        self.optimizers = NetworkOptimizers(method, policy, settings)
        self.updates = 0
        """Updates made so far."""
        self.last: Trajectories | None = None
        self.traced: None = None
        self.nonfinite_update: None = None

    # -- one step ------------------------------------------------------------------------------------------------------

    def step(self, step: int) -> Metrics:
        """Acts and learns, remembers; the metrics of the step."""
        progress = (step - 1) / max(self.settings.steps or 1, 1)
        method = self.method.with_knobs(self._knobs(progress))
        self.references.renew(method, self.states, step, progress)
        lr = self.optimizers.set_learning_rate(step)
        began, acting_seconds, sums = time.perf_counter(), 0.0, _Means()
        before, first = self.rollout.env_steps, self.updates
        ticks, updates = self._sizes(step)
        for tick in range(max(ticks, 1)):
            if ticks:
                acted_at = time.perf_counter()
                self.rollout.act()
                acting_seconds += time.perf_counter() - acted_at
            due = updates * (tick + 1) // max(ticks, 1) - updates * tick // max(ticks, 1)
            if self.rollout.warmed_up():
                for _ in range(due):
                    self._update(method, step, progress, sums)
        metrics = sums.means() | self.rollout.metrics()
        self._check(method, metrics, step)
        for path, part in estimator.stateful(method).items():
            if self.last is not None:
                self.states[path] = call(method, cast(Part, part), part.update, self.states[path], self.last, metrics)
        seconds, acted = time.perf_counter() - began, float(self.rollout.env_steps - before)
        made = float(self.updates - first)
        return metrics | {
            "lr": lr,
            "updates": made,
            "samples": acted,
            "tokens": acted,
            "seconds": seconds,
            "seconds_sampling": acting_seconds,
            "tokens_per_second": acted / max(seconds, 1e-9),
            "updates_per_second": made / max(seconds - acting_seconds, 1e-9),
        }

    def _sizes(self, step: int) -> tuple[int, int]:
        """Ticks and updates of a step."""
        settings = self.settings
        offline = step <= (settings.offline_steps or 0)
        return 0 if offline else settings.horizon or 1, settings.updates_per_step or 1

    def _knobs(self, progress: float) -> dict[str, float]:
        knobs: dict[str, float] = {}
        for path, part in estimator.stateful(self.method).items():
            if isinstance(part, Controller):
                knobs |= call(self.method, part, part.knobs, self.states[path], progress)
        return knobs

    def _check(self, method: Method, metrics: Metrics, step: int) -> None:
        if not self.optimizers.finite():
            raise NonFinite(f"step {step}: an update left weights that are not finite.",
                            f"start anew with a lower --lr than {self.settings.lr:g}.")  # fmt: skip
        check_values(method, metrics, self.rollout.largest_reward, self.data.gamma, step)

    # -- one update ----------------------------------------------------------------------------------------------------

    def _update(self, method: Method, step: int, progress: float, sums: _Means) -> None:
        self.updates += 1
        rows = self.rollout.draw(self.settings.minibatch or 256, step, self.updates, drawn_data(method))
        keys = decision_keys(torch.arange(rows.rows) + mix(self.settings.seed, "keys", step, self.updates) % (1 << 61), 1)
        rows = estimator.bind(
            method, self.states, rows.replace(progress=progress, draw=self.updates, key=keys.to(rows.sampled.device))
        )
        noise = UpdateNoise(self.settings.seed, step, self.updates, self.policy.device)
        compared = {name: self.references.compared(method, name) for name, _ in method.references}
        nets = BoundNetworks(self.policy, rows.inputs, noise, compared)  # type: ignore[arg-type]
        learn_once(method, rows, nets, self.optimizers, self.updates, sums)
        self.policy.follow(self.updates)
        self.last = rows.replace(advantage=torch.zeros_like(rows.sampled))

    # -- carrying over a stop ------------------------------------------------------------------------------------------

    def before_checkpoint(self) -> None:
        self.rollout.settle()

    def state(self) -> State:
        return {
            "optimizers": self.optimizers.state(),
            "parts": self.states,
            "rollout": self.rollout.state(),
            "references": self.references.state(),
            "updates": self.updates,
        }

    def load_state(self, state: State) -> None:
        self.optimizers.load_state(state["optimizers"])
        if missing := set(self.states) - set(state["parts"]):
            raise UserError(f"the checkpoint holds no state for {', '.join(sorted(missing))}; it belongs to another method.")
        self.states = {path: state["parts"][path] for path in self.states}
        self.rollout.load_state(state["rollout"])
        self.references.load_state(state["references"])
        self.updates = int(state["updates"])


def learn_once(
    method: Method, rows: Trajectories, nets: BoundNetworks, optimizers: NetworkOptimizers, update: int, sums: _Means
) -> None:
    """One update: the learned models in their order, the policy among them where it is due."""
    rows = estimator.clean_drawn(rows)
    share = estimator.drawn_share(method, rows)
    before = [(name, model) for name, model in method.learned if model.order < 0]
    after = [(name, model) for name, model in method.learned if model.order >= 0]
    for name, model in before:
        _fit(method, name, model, rows, share, nets, optimizers, update, sums)
    if estimator.has_actor_loss(method) and update % getattr(method.policy, "every", 1) == 0:
        own = nets.scoped(POLICY)
        batch = estimator.begin_update(method, estimator.annotate(method, rows.replace(nets=own)))
        losses, notes = estimator.decision_losses(method, batch)
        loss = losses.sum()
        optimizers.apply(POLICY, loss)
        sums.add("loss", loss.detach())
        for key, column in notes.items():
            sums.add(key, (column * share).sum())
    for name, model in after:
        _fit(method, name, model, rows, share, nets, optimizers, update, sums)


def _fit(
    method: Method, name: str, model: Learned, rows: Trajectories, share: Tensor, nets: BoundNetworks,
    optimizers: NetworkOptimizers, update: int, sums: _Means,
) -> None:  # fmt: skip
    if update % model.every:
        return
    batch = estimator.begin_fit(method, model, rows.replace(nets=nets.scoped(name), share=share))
    losses, notes = estimator.fit_losses(method, model, batch)
    loss = losses.sum()
    optimizers.apply(name, loss)
    nets.forget(name)
    sums.add(f"{name}_loss", loss.detach())
    for key, column in notes.items():
        plain = key in ("temperature", "entropy")  # there is one of these in a run
        sums.add(key if plain else f"{name}_{key}", (column * share).sum())


def drawn_data(method: Method) -> DrawnData:
    """How a method draws its rows."""
    found = [part for part in method.data if isinstance(part, DrawnData)]
    if len(found) != 1:
        raise MethodError(f"{method.name} learns from stored experience and says {len(found)} times how rows are drawn. "
                          "Give it one such part: data=UniformReplay().")  # fmt: skip
    return found[0]


def check(method: Method, provides: frozenset[str]) -> None:
    """Refuses a method that this learner cannot train."""
    drawn_data(method)
    estimator.check(method, PROVIDES | provides)
    if not estimator.has_actor_loss(method) and not hasattr(method.policy, "of"):
        raise MethodError(f"{method.name} has neither a surrogate nor a policy that reads a model: nothing would learn to act.")
    for _, part in method.parts():
        if isinstance(part, Learned) and part.order == 0:
            raise MethodError(f"{method.name} has a model of order 0, which is the policy's. Give -1 to fit it before, 1 after it.")


class _Means:
    """Means over updates; nothing waits for the device until they are asked for."""

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, name: str, value: Tensor) -> None:
        self.values[name].append(value.detach())

    def means(self) -> Metrics:
        return {name: float(torch.stack(values).double().mean()) for name, values in self.values.items()}
