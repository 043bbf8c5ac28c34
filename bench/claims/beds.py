"""The table bed: a softmax table that trains through the real learner in milliseconds a step, with exact J and entropy.

    bed = TableBed(GoodArms(decoy=0.5), known=0.01)      # B1: 16 contexts x 32 arms; the good one is rare, a decoy pays half
    run = train_table("dapo", bed, steps=200, lr=0.1, updates_per_step=4, seed=0)
    run.curve("J"), run.curve("exact_entropy"), run.policy

What it pays for is in `table_rewards`, the bed and its policy in `table_policy`; this module hands all of them on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from table_policy import TableBed, TablePolicy, after_stop
from table_rewards import Corrupted, Exact, Flipped, GoodArms, Lock, Noisy, Reward, Wrapped
from torch import Tensor

from upslope import method as find_method
from upslope.errors import UserError
from upslope.learners.base import needs_start
from upslope.learners.policy_gradient import PolicyGradient
from upslope.rollout.choosing import Candidate, Choices, category_id, offered
from upslope.rollout.local import LocalRollout
from upslope.runtime.seeding import generator, mix, numpy_generator, uniforms
from upslope.runtime.settings import Settings, check_names
from upslope.runtime.threads import use_threads
from upslope.types import UNCUT, Choosing, Ended, Method, Metrics, RolloutRequest, Source, Trajectories, View

__all__ = ["Corrupted", "Exact", "Flipped", "GoodArms", "Lock", "Noisy", "Reward", "TableBed", "TablePolicy", "TableRollout",
           "TableRun", "Wrapped", "train_table"]  # fmt: skip


@dataclass(frozen=True, eq=False)
class TableInputs:
    """The context of each row ``[N]``."""

    context: Tensor

    def take(self, pick: Any) -> TableInputs:
        return TableInputs(pick(self.context))


class TableRollout(LocalRollout):
    """Groups of answers in contexts drawn by counter: the same seed and step give the same contexts and the same noise."""

    domain = "text"
    provides = frozenset({"group", "label.answer", "label.category", "segment.item", "ended", "seconds"})
    resumes_anywhere = True
    traced = True

    def __init__(self, policy: TablePolicy, tasks: int, samples: int, seed: int):
        self.policy, self.bed, self.tasks, self.samples, self.seed = policy, policy.bed, tasks, samples, seed
        self.older = [policy.logits().detach()]
        """What the last ``lag + 1`` steps began with, newest last."""
        self.choices = Choices()

    def rows_of(self, request: RolloutRequest) -> Trajectories:
        """Contexts as they come, every one once before any is asked twice; or those that a curriculum chooses."""
        step, attempt, tasks = request.step, request.attempt, self.tasks if request.tasks is None else request.tasks
        if request.choosing is not None:
            return self._chosen(step, attempt, tasks, request.choosing)
        random = numpy_generator(self.seed, "tasks", step, attempt)
        rounds = -(-tasks // self.bed.contexts)
        order = np.concatenate([random.permutation(self.bed.contexts) for _ in range(rounds)])
        return self.answers(torch.from_numpy(order[:tasks]), step, attempt)

    def _chosen(self, step: int, attempt: int, tasks: int, choosing: Choosing) -> Trajectories:
        """The contexts that are ordered, of an offer of ``candidates`` times as many as are wanted. A value of ``known`` is a
        category."""
        random = numpy_generator(self.seed, "tasks", step, attempt)
        found = torch.from_numpy(random.permutation(self.bed.contexts)[: tasks * choosing.candidates])
        told = [Candidate(context, self.category(context), context % self.levels) for context in found.tolist()]
        offer = dataclasses.replace(
            offered(told, torch.from_numpy(random.random(len(found))), tasks, self.samples),
            attempt=attempt,
            max_tokens=self.bed.positions,
            seed=mix(self.seed, "choose", step, attempt),
            value=lambda head: self.policy.heads[head].detach()[found, 0, 0],
        )
        order = choosing.decide(offer)
        return self.answers(found[order.chosen], step, attempt, self.choices.add(offer, order).each)

    @property
    def levels(self) -> int:
        return len(self.bed.known) if isinstance(self.bed.known, tuple) else 1

    def category(self, context: int) -> str:
        return f"level {context % self.levels}" if self.levels > 1 else ""

    def answers(self, chosen: Tensor, step: int, attempt: int, each: list[int] | None = None) -> Trajectories:
        """A group of sampled answers in each of these contexts."""
        bed, counters = self.bed, (step, attempt)
        sizes = torch.tensor(each or [self.samples] * len(chosen))
        context = chosen.repeat_interleave(sizes)
        noise = uniforms((len(context), bed.positions), self.seed, "tokens", *counters)
        table = self._sampler(step)
        tokens = inverse_sample(table[context].exp(), noise)
        tokens, sampled = after_stop(tokens, 0) if bed.stop else (tokens, torch.ones(tokens.shape))
        luck = uniforms((len(context),), self.seed, "reward", *counters)
        rows = self._rows(context, tokens, sampled, luck)
        entropy = -(table.exp() * table).sum(2)[context]
        behavior = View(table[context.unsqueeze(1), self.policy.places, tokens] * sampled, entropy * sampled)
        group = torch.arange(len(chosen)).repeat_interleave(sizes) + attempt * 1_000_000
        rows = rows.replace(behavior=behavior, group=group)
        return rows.replace(proximal=self._as_proximal(rows)) if bed.ratio_to_sampler else rows

    def teacher(self, rows: Trajectories) -> Trajectories:
        """Token 1 throughout as one more answer of each group, which nobody sampled."""
        group, first = np.unique(rows.group.numpy(), return_index=True)
        context = rows.inputs.context[torch.from_numpy(first)]
        tokens = torch.ones(len(context), self.bed.positions, dtype=torch.int64)
        taught = self._rows(context, tokens, torch.ones(tokens.shape), torch.full((len(context),), 0.5))
        source = torch.full((len(context),), int(Source.DEMONSTRATED))
        return taught.replace(group=torch.from_numpy(group), label={"source": source})

    def _rows(self, context: Tensor, tokens: Tensor, sampled: Tensor, luck: Tensor) -> Trajectories:
        """Answers with what they earn; nobody's yet."""
        bed = self.bed
        reward = bed.reward(context, tokens, luck).float()
        last = (sampled > 0) & (sampled.flip(1).cumsum(1).flip(1) == 1)
        ends = torch.full(tokens.shape, int(Ended.TERMINATED), dtype=torch.int8)
        if bed.stop:
            ends[tokens != 0] = int(Ended.TRUNCATED)
        return Trajectories(
            sampled=sampled,
            seconds=last * (1.0 + tokens[:, :1] % 3),  # some answers take longer than others, whatever they are worth
            reward=reward,
            components={"task": reward, **bed.reward.components(context, tokens, luck)},
            group=torch.zeros_like(context),
            task=context,
            behavior=View(torch.full_like(sampled, torch.nan)),
            action=tokens,
            temperature=torch.full_like(sampled, bed.temperature),
            ended=last * ends,
            bootstrap=torch.zeros_like(sampled),
            label={
                "answer": bed.reward.answer(context, tokens),
                "category": torch.tensor([category_id(self.category(each)) for each in context.tolist()]),
            },
            segment={"item": (torch.arange(bed.positions) * bed.items // bed.positions).repeat(len(context), 1)},
            horizon=bed.positions,
            inputs=TableInputs(context),
        )

    def _sampler(self, step: int) -> Tensor:
        """Log-probabilities of what is sampled from ``[C, T, V]``."""
        logits = self.older[0] / self.bed.temperature
        if self.bed.sampler_noise:
            logits = logits + self.bed.sampler_noise * torch.randn(logits.shape, generator=generator(self.seed, "sampler", step))
        return logits.log_softmax(-1)

    def _as_proximal(self, rows: Trajectories) -> View:
        with torch.no_grad():
            heads = self.policy.evaluate(rows, frozenset(self.policy.heads)).columns()
        return View.of({**heads, **rows.behavior.columns()})

    def join(self, batches: list[Trajectories]) -> Trajectories:
        """Batches of one bed are equally wide. Columns that not all of them have are left out."""

        def joined(values: list[Any]) -> Any:
            first = values[0]
            if any(value is None for value in values):
                return None
            if isinstance(first, Tensor):
                return torch.cat(values)
            if isinstance(first, View):
                return View.of(joined([value.columns() for value in values]))
            if isinstance(first, TableInputs):
                return TableInputs(torch.cat([value.context for value in values]))
            if isinstance(first, Mapping):
                names = [name for name in first if all(name in value for value in values)]
                return {name: joined([value[name] for value in values]) for name in names}
            return first

        names = [f.name for f in dataclasses.fields(Trajectories) if f.name not in UNCUT]
        return batches[0].replace(**{name: joined([getattr(batch, name) for batch in batches]) for name in names})

    def metrics(self) -> Metrics:
        return self.choices.metrics()

    def sync(self) -> None:
        self.older = [*self.older, self.policy.logits().detach()][-self.bed.lag - 1 :]

    def restart(self, step: int) -> None:
        """Nothing goes on from step to step but the older policies."""

    def state(self) -> dict[str, Any]:
        return {"older": self.older}

    def load_state(self, state: dict[str, Any]) -> None:
        self.older = state["older"]


def inverse_sample(probability: Tensor, noise: Tensor) -> Tensor:
    """Tokens ``[N, T]`` from ``[N, T, V]`` and uniforms ``[N, T]``."""
    mass = probability.cumsum(-1)
    return (mass <= (noise * mass[..., -1]).unsqueeze(-1)).sum(-1).clamp_max(probability.shape[-1] - 1)


@dataclass
class TableRun:
    """A finished run: the learner's metrics and the exact numbers after each step, and the policy."""

    before: Metrics
    metrics: list[dict[str, Any]]
    policy: TablePolicy
    learner: PolicyGradient

    def curve(self, name: str) -> np.ndarray:
        return np.array([record.get(name, np.nan) for record in self.metrics], dtype=float)


def train_table(
    method: str | Method,
    bed: TableBed,
    steps: int = 200,
    tasks_per_step: int = 16,
    samples_per_task: int = 8,
    lr: float = 0.1,
    seed: int = 0,
    updates_per_step: int = 1,
    passes: int = 1,
    knobs: Mapping[str, Any] | None = None,
    **settings: Any,
) -> TableRun:
    """Trains a table. The learning rate is constant and gradients are not shortened unless the settings say so.

    Args:
        lr: of Adam; 0.05 to 0.3 suits a table.
        settings: further fields of `Settings`. Adam hides the size of a gradient; a large ``adam_eps`` (1e-2) lets it show.
    """
    use_threads(1)
    plain = {"schedule": "constant", "warmup": 0, "grad_clip": 0.0, "adam_beta2": 0.999, "adam_eps": 1e-8, "watch_kl": False}
    check_names(settings)
    full = Settings(steps=steps, tasks_per_step=tasks_per_step, samples_per_task=samples_per_task, lr=lr, seed=seed,
                    updates_per_step=updates_per_step, passes=passes, **{**plain, **settings})  # fmt: skip
    chosen = find_method(method).for_domain("text").with_knobs(knobs or {}).derive(on=())
    if chosen.rollout is not None:
        raise UserError(f"{chosen.name} samples in a way of its own ({chosen.rollout}), which a table does not do; use a TextBed.")
    policy = TablePolicy(bed, seed)
    for name, model in chosen.models:
        policy.add_head(name, model.head(), mix(seed, f"{name} head"))
    start = policy.frozen_copy() if needs_start(chosen, full) else None
    learner = PolicyGradient(chosen, policy, TableRollout(policy, tasks_per_step, samples_per_task, seed), full, start)
    before, records = policy.told(), []
    for step in range(1, steps + 1):
        records.append({"step": step, **learner.step(step), **policy.told()})
    return TableRun(before, records, policy, learner)
