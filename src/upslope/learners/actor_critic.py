"""The actor-critic learner: it acts, keeps what happened, and learns from rows drawn out of what is kept.

A step is ``horizon`` ticks of the environments and ``updates_per_step`` updates spread evenly between them; while a run is offline,
updates alone. An update draws rows, fits the learned models in their order, moves the policy where that is due by the same three
calls of the estimator as every method, and lets the slowly following copies follow. It knows no method's name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from upslope.errors import MethodError, UserError
from upslope.learners.cpu_graphed_updates import CPUGraphedUpdates
from upslope.learners.graphed_updates import BLOCK, GraphedUpdates, Noise, Sums, share_of_rows
from upslope.learners.network_optimizers import NetworkOptimizers
from upslope.learners.nonfinite import NonFinite
from upslope.learners.references import References
from upslope.learners.slow_weights import KeptWeights, slow_weights_of
from upslope.learners.value_guard import check_values
from upslope.objective import estimator
from upslope.objective.base import Controller, State
from upslope.policies.control.bound_networks import BoundNetworks
from upslope.policies.control.network_policy import POLICY, NetworkPolicy
from upslope.rollout.replay import ReplayRollout
from upslope.runtime.seeding import mix
from upslope.runtime.settings import Settings
from upslope.types import DrawnData, Learned, Method, Metrics, Part, Trajectories, call, decision_keys

LARGEST_DRAW = 1 << 22
"""Numbers of observations that are drawn at once."""
PROVIDES = frozenset({"key"})
"""Columns that rows have besides those of the rollout."""


class UpdateNoise:
    """Random numbers of one update, by counter."""

    def __init__(self, seed: int, step: int, update: int, random: torch.Generator | None = None):
        self.seed, self.step, self.update = seed, step, update
        self.random = random or torch.Generator()

    def __call__(self, kind: str, name: str, shape: tuple[int, ...]) -> Tensor:
        random = self.random.manual_seed(mix(self.seed, "noise", self.step, self.update, kind, name))
        make = torch.randn if kind == "normal" else torch.rand
        return make(shape, generator=random)


class ActorCritic:
    """One method, one policy of networks, one rollout that remembers."""

    def __init__(self, method: Method, policy: NetworkPolicy, rollout: ReplayRollout, settings: Settings, start: Any = None):
        check(method, rollout.provides)
        self.method, self.policy, self.rollout, self.settings = method, policy, rollout, settings
        self.data = drawn_data(method)
        self.references = References(method, cast(Any, policy), start, settings.seed)
        self.states: dict[str, State] = {
            path: call(method, cast(Part, part), part.init) for path, part in estimator.stateful(method).items()
        }  # fmt: skip
        self.optimizers = NetworkOptimizers(method, policy, settings)
        asked = slow_weights_of(method)
        self.slow = KeptWeights(method, policy, asked) if asked is not None else None
        """Weights that networks return to, if a controller asks for them."""
        self.updates = 0
        """Updates made so far."""
        self._solved: set[str] = set()
        """Solved models that have been, since the run began or went on."""
        self.last: Trajectories | None = None
        self.graphed = GraphedUpdates(policy, method, self._draw, self._learn) if policy.device.type != "cpu" else None
        """Updates in blocks, on a GPU."""
        self.replayed = CPUGraphedUpdates(policy, method, self._learn)
        """Updates one by one, on a CPU."""
        self._drawn_at_once = drawn_at_once((settings.minibatch or 256) * math.prod(policy.space.observation))
        self._random = torch.Generator()
        self._now = (method, 1, 0.0)
        """The method with the step's knobs, the step, and the share of the run that is done."""
        self.traced: None = None
        self.nonfinite_update: None = None

    # -- one step ------------------------------------------------------------------------------------------------------

    def step(self, step: int) -> Metrics:
        """Acts and learns, remembers; the metrics of the step."""
        progress = (step - 1) / max(self.settings.steps or 1, 1)
        method = self.method.with_knobs(self._knobs(progress))
        self.references.renew(method, self.states, step, progress)
        if method != self._now[0]:
            self.replayed.knobs_moved()
        if self.graphed is not None and (method != self._now[0] or method.references or estimator.stateful(method)):
            self.graphed.forget()
        self._now = (method, step, progress)
        lr = self.optimizers.set_learning_rate(step)
        began, acting_seconds, sums = time.perf_counter(), 0.0, Sums()
        found = self._solve(method, step)
        before, first = self.rollout.env_steps, self.updates
        ticks, updates = self._sizes(step)
        for tick in range(max(ticks, 1)):
            if ticks:
                acted_at = time.perf_counter()
                self.rollout.act()
                acting_seconds += time.perf_counter() - acted_at
            due = updates * (tick + 1) // max(ticks, 1) - updates * tick // max(ticks, 1)
            if self.rollout.warmed_up():
                self._update(due, sums)
        means = sums.means() if self.graphed is None else self.graphed.means()
        metrics = found | means | self.rollout.metrics()
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

    def _solve(self, method: Method, step: int) -> Metrics:
        """Solves the models that are due, and those that a checkpoint does not hold: these log nothing, as they did before."""
        metrics: Metrics = {}
        for name, model in method.solved:
            due = model.due(step)
            if due or name not in self._solved:
                found = call(method, model, model.solve, self.policy.networks[name], self.rollout.world())
                self._solved.add(name)
                metrics |= {f"{name}_{key}": value for key, value in found.items()} if due else {}
        return metrics

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

    def _update(self, count: int, sums: Sums) -> None:
        """So many updates."""
        if self.rollout.bring_frames():  # they lie elsewhere now
            for recorded in (self.replayed, self.graphed):
                if recorded is not None:
                    recorded.forget()
        if self.graphed is not None:
            self.graphed.run(self.updates + 1, count)
        else:
            for first in range(0, count, self._drawn_at_once):
                numbers = range(self.updates + 1 + first, self.updates + 1 + min(first + self._drawn_at_once, count))
                rows, noises = self._draw(numbers)
                self.replayed.run(rows, noises, numbers[0], sums)
                self.last = _judged(share_of_rows(rows, len(numbers) - 1, len(numbers)))
        self.updates += count

    def _draw(self, numbers: Sequence[int]) -> tuple[Trajectories, list[Noise]]:
        """The rows of some updates, one behind the other, and where their random numbers come from, on the CPU."""
        method, step, progress = self._now
        size, seed = self.settings.minibatch or 256, self.settings.seed
        rows = self.rollout.draw(size, step, numbers, drawn_data(method))
        rows = estimator.bind(method, self.states, rows.replace(progress=progress))
        if "key" in method.needs():
            firsts = [torch.arange(size) + mix(seed, "keys", step, number) % (1 << 61) for number in numbers]
            rows = rows.replace(key=decision_keys(torch.cat(firsts), 1))
        return rows, [UpdateNoise(seed, step, number, self._random) for number in numbers]

    def _learn(self, rows: Trajectories, noise: Noise, number: int, sums: Sums) -> None:
        """One update on these rows; copies that move seldom are left to the caller."""
        method = self._now[0]
        self.last = _judged(rows)
        rows = self.rollout.shown(rows)
        compared = {name: self.references.compared(method, name) for name, _ in method.references}
        nets = BoundNetworks(self.policy, rows.inputs, noise, compared)  # type: ignore[arg-type]
        learn_once(method, rows, nets, self.optimizers, number, sums)
        self.policy.follow(number, rarely=False)
        if self.slow is not None:
            self.slow.step(number)

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
        } | ({} if self.slow is None else {"slow_weights": self.slow.state()})

    def load_state(self, state: State) -> None:
        self.optimizers.load_state(state["optimizers"])
        if missing := set(self.states) - set(state["parts"]):
            raise UserError(f"the checkpoint holds no state for {', '.join(sorted(missing))}; it belongs to another method.")
        self.states = {path: state["parts"][path] for path in self.states}
        self.rollout.load_state(state["rollout"])
        self.references.load_state(state["references"])
        self.updates = int(state["updates"])
        self.replayed.forget()
        if self.slow is not None:
            self.slow.load_state(state["slow_weights"])


def learn_once(
    method: Method, rows: Trajectories, nets: BoundNetworks, optimizers: NetworkOptimizers, update: int, sums: Sums
) -> None:
    """One update: the learned models in their order, the policy among them where it is due."""
    if rows.horizon != 1:  # of single decisions there is none that nobody took
        rows = estimator.clean_drawn(rows)
    if method.reward:
        rows = estimator.score(method, rows.replace(nets=nets), late=False)
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
    optimizers: NetworkOptimizers, update: int, sums: Sums,
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


def _judged(drawn: Trajectories) -> Trajectories:
    """Drawn rows as others look at them after a step: none is better than another."""
    return drawn.replace(advantage=torch.zeros_like(drawn.sampled))


def drawn_at_once(size: int) -> int:
    """Updates whose rows are drawn in one go, where each looks at so many numbers: a gather costs more calls than copies."""
    return max(1, min(BLOCK, LARGEST_DRAW // max(size, 1)))


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
    chosen_by = getattr(method.policy, "by", "")
    if chosen_by and chosen_by not in dict(method.models):
        raise MethodError(f"{method.name}: policy.by is {chosen_by!r}, and the method has no model of that name. Give it one: "
                          f"--set models.{chosen_by}='Balance()'.")  # fmt: skip
    for _, part in method.parts():
        if isinstance(part, Learned) and part.order == 0:
            raise MethodError(f"{method.name} has a model of order 0, which is the policy's. Give -1 to fit it before, 1 after it.")
