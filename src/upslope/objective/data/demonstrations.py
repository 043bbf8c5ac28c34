"""Demonstrations for the groups that need one, behind a gate (HPT, AHPO, SRFT)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from upslope.objective.base import Data, DataContext
from upslope.objective.data.gates import GateWeights, HardGate, SuccessGate
from upslope.objective.data.ground_truth import joined, keyed
from upslope.types import Metrics, Trajectories

IMITATED, OFF_POLICY = "demonstration", "off_policy"
"""Names of the rows put aside: to be imitated, and to be reinforced as samples of another policy."""


class _Groups(NamedTuple):
    """The groups of a step."""

    number: Tensor
    """The group of each row ``[N]``, from 0 on."""
    names: Tensor
    solved: Tensor
    """Right answers among those sampled ``[G]``."""
    weights: GateWeights


@dataclass(frozen=True)
class Demonstrations(Data):
    """Looks at each group's own success and gives it a demonstration of its problem where the gate says so.

    Demonstrations to imitate are put aside as ``demonstration``, those to reinforce as ``off_policy``, each for a term that learns
    with the updates of its group. Every row gets ``signal["gate"]``, the weight the gate gives to what the row is there for: the
    filter `Gated` drops rows of weight zero, the weight `GateWeight` multiplies with it.

    Fields:
        gate: how much a group learns from its own answers and how much from the demonstration.
        right: a reward from here on counts as success.
        join: the demonstration to reinforce joins the group of every problem, as in `GroundTruth`, and counts in its baseline
            (LUFFY, SRFT); otherwise it stands aside, without a group to be compared with.
    """

    text_only: ClassVar[bool] = True
    judges_by: ClassVar[str] = "right"
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"solutions"})
    ranges: ClassVar = {"right": "(-inf, inf)"}

    gate: SuccessGate = field(default_factory=HardGate)
    right: float = 1.0
    join: bool = False

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        groups = self._groups(rows)
        own, off_policy, imitation = groups.weights
        rows = _noted(rows, groups).replace(signal={**rows.signal, "gate": own[groups.number]})
        wanted = torch.ones_like(own, dtype=torch.bool) if self.join else (off_policy > 0) | (imitation > 0)
        if not bool(wanted.any()):
            return rows
        taught = keyed(rows, context.teacher(rows.take_rows(wanted[groups.number])))
        place = torch.searchsorted(groups.names, taught.group)
        aside = dict(rows.aside)
        if self.join:
            rows = joined(rows, taught.replace(signal={"gate": off_policy[place]}), context)
        else:
            _put_aside(aside, OFF_POLICY, taught, off_policy[place])
        _put_aside(aside, IMITATED, taught, imitation[place])
        return rows.replace(aside=aside)

    def metrics(self, rows: Trajectories) -> Metrics:
        groups = self._groups(rows)
        _, off_policy, imitation = groups.weights
        told = {"gated_groups": float((imitation > 0).float().mean()), "solved_per_group": float(groups.solved.mean())}
        return told | ({"off_policy_groups": float((off_policy > 0).float().mean())} if bool((off_policy > 0).any()) else {})

    def _groups(self, rows: Trajectories) -> _Groups:
        """How the groups did on the task itself, and what the gate makes of it. Rows that were not just sampled do not count."""
        names, index = torch.unique(rows.group, return_inverse=True)
        fresh = rows.fresh()
        right = (rows.verdict() >= self.right) & fresh

        def count(which: Tensor) -> Tensor:
            return torch.zeros(len(names), device=which.device).index_add_(0, index, which.float())

        solved = count(right)
        return _Groups(index, names, solved, self.gate(solved, count(fresh)))


def _noted(rows: Trajectories, groups: _Groups) -> Trajectories:
    """The rows with what the gate said in their notes for people."""
    if not rows.info:
        return rows
    columns = [each.tolist() for each in (groups.solved, *groups.weights)]
    told = [dict(zip(("solved", *GateWeights._fields), values, strict=True)) for values in zip(*columns, strict=True)]
    notes = [{**note, "gate": told[group]} for note, group in zip(rows.info, groups.number.tolist(), strict=True)]
    return rows.replace(info=notes)


def _put_aside(aside: dict[str, Trajectories], name: str, taught: Trajectories, weight: Tensor) -> None:
    """Puts those of the demonstrations aside that have a weight."""
    keep = weight > 0
    if bool(keep.any()):
        aside[name] = taught.replace(signal={"gate": weight}).take_rows(keep).replace(info=[])
