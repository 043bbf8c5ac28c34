"""Metrics of a step: sums over decisions, gathered slice by slice. Nothing waits for the device until a mean is asked for."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from upslope.objective.ratio import LOG_LIMIT, raw_log_ratio
from upslope.plain_data import JsonDict
from upslope.runtime.team import ALONE, Team
from upslope.types import Metrics, Trajectories

MOST_AGES = 16
"""Ages that are counted apart; what is older counts as that."""


class PendingMetrics(NamedTuple):
    """What an update showed, not yet added up."""

    entries: list[tuple[Any, ...]]
    """Name, total and count; an integer is the place of the number among the values."""
    values: tuple[Any, ...]

    def add_to(self, sums: MetricSums) -> None:
        for name, *pair in self.entries:
            sums.add(name, *(float(self.values[number]) if isinstance(number, int) else number for number in pair))


class MetricSums:
    """Totals and counts by name."""

    def __init__(self) -> None:
        self.pending: list[PendingMetrics] = []
        self.totals: dict[str, list[Tensor | float]] = defaultdict(list)
        self.counts: dict[str, list[Tensor | float]] = defaultdict(list)

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        """Adds ``count`` observations that sum to ``total``."""
        self.totals[name].append(total)
        self.counts[name].append(count)

    def defer(self, pending: PendingMetrics) -> None:
        """Adds these when a mean is asked for: an update on a few decisions has no time for it."""
        self.pending.append(pending)

    def merge(self, other: MetricSums, prefix: str = "") -> None:
        """Adds what another has gathered, each name with the prefix; only without one may some of it be deferred."""
        assert not (prefix and other.pending)
        self.pending += other.pending
        for name, totals in other.totals.items():
            self.totals[prefix + name] += totals
            self.counts[prefix + name] += other.counts[name]

    def means(self, team: Team = ALONE) -> Metrics:
        """Mean of each name, over what all of the team have gathered; nothing observed is left out."""
        pending, self.pending = self.pending, []
        for update in pending:
            update.add_to(self)
        sums = _sums([*self.totals.values(), *self.counts.values()])
        found = dict(zip(self.totals, zip(sums, sums[len(self.totals) :], strict=False), strict=False))
        if team.size > 1:
            found = _added(team.gathered({name: list(pair) for name, pair in found.items()}))
        return {name: total / count for name, (total, count) in found.items() if count > 0}


def _added(gathered: list[JsonDict]) -> dict[str, tuple[float, float]]:
    """Totals and counts of several processes; not all have seen everything."""
    names = dict.fromkeys(name for each in gathered for name in each)
    pairs = {name: [each[name] for each in gathered if name in each] for name in names}
    return {name: (sum(total for total, _ in some), sum(count for _, count in some)) for name, some in pairs.items()}


def _sums(columns: list[list[Tensor | float]]) -> list[float]:
    """The sum of each; all of them come from the device in one go."""
    found = [float(sum(value for value in column if not isinstance(value, Tensor))) for column in columns]
    tensors = [[value.double() for value in column if isinstance(value, Tensor)] for column in columns]
    there = [number for number, some in enumerate(tensors) if some]
    if there:
        device = next((some[0].device for some in tensors if some and some[0].is_cuda), tensors[there[0]][0].device)
        added = torch.stack([torch.stack(tensors[number]).sum().to(device) for number in there])
        for number, value in zip(there, added.tolist(), strict=True):
            found[number] += value
    return found


def sampling_metrics(everything: Trajectories, rows: Trajectories) -> Metrics:
    """What is known of a step before anything is learned; ``rows`` are those that passed the filters."""
    decisions = everything.sampled.sum().clamp_min(1)
    metrics = {"kept_rows": rows.rows / max(everything.rows, 1)}
    if everything.behavior.entropy is not None:
        metrics["entropy"] = float((everything.behavior.entropy * everything.sampled).sum() / decisions)
    metrics |= component_metrics(everything)
    if "task" in everything.components:
        metrics["reward"] = float(everything.components["task"].mean())
        metrics["constant_groups"] = float(everything.group_stats(everything.verdict()).constant.float().mean())
        lengths = everything.lengths()
        metrics |= {"length": float(lengths.mean()), "longest": float(lengths.max())}
    if everything.version is not None:
        age = everything.age()
        metrics |= {"age": float(age.sum() / decisions), "oldest": float(age.max())}
        counts = torch.bincount(age[everything.sampled > 0].long().clamp(0, MOST_AGES)).tolist()
        metrics |= {f"age_share_{steps}": count / float(decisions) for steps, count in enumerate(counts)}
    return metrics


def component_metrics(rows: Trajectories) -> Metrics:
    """Mean of each part of the reward but the task's own, over the rows it applies to; one that applies to none is left out."""
    means = {name: float(values[~values.isnan()].mean()) for name, values in rows.components.items() if name != "task"}
    return {f"reward_{name}": mean for name, mean in means.items() if mean == mean}


def add_slice_metrics(
    sums: MetricSums, piece: Trajectories, losses: Tensor, notes: dict[str, Tensor], grad: Tensor | None, slices: int = 1
) -> None:
    """Adds what one slice showed: clipping, movement, and which decisions got a gradient (``grad``).

    Args:
        slices: into how many the update is cut: their losses sum to the update's.
    """
    on = piece.sampled > 0
    count = piece.sampled.sum()
    clipped = [notes[name] for name in ("clipped_high", "clipped_low") if name in notes]
    if clipped:
        notes = {**notes, "clip_fraction": reduce(torch.logical_or, clipped)}
    for name, column in notes.items():
        if column.dtype == torch.bool:
            sums.add(name, (column & on).sum(), count)
        else:  # numbers, of decisions or of rows, where they are known
            known = ~column.isnan() & (on if column.dim() > 1 else True)
            sums.add(name, torch.where(known, column, 0.0).sum(), known.sum())
    if grad is not None:
        sums.add("learning", ((grad != 0) & on).sum(), 0.0)
    raw = raw_log_ratio(piece)
    log = torch.where(raw.isnan(), 0.0, raw).clamp(-LOG_LIMIT, LOG_LIMIT)
    sums.add("limited", ((raw.isnan() | (raw.abs() > LOG_LIMIT)) & on).sum(), count)
    sums.add("log_ratio", log.abs().sum(), count)
    sums.add("kl_proximal", ((log.exp() - 1 - log) * on).sum(), count)
    assert piece.advantage is not None
    sums.add("advantage_positive", ((piece.advantage > 0) & on).sum(), count)
    sums.add("loss", losses.sum(), 1.0 / slices)
