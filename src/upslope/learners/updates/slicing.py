"""Slicing: how a step is cut into updates (shares of the data, one optimiser step each) and slices (what fits in memory).

Neither changes the gradient beyond rounding: denominators are those of the whole update (`estimator.begin_update`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from upslope.errors import Remark, UserError
from upslope.types import Batch, Scope, Trajectories

BatchT = TypeVar("BatchT", bound=Batch)


def share_groups(batch: BatchT, updates: int, generator: torch.Generator) -> list[BatchT]:
    """The updates of a pass: whole groups, dealt out at random in equal shares, rows in their original order."""
    groups = torch.unique(batch.group)
    if updates <= 1 or len(groups) <= 1:
        return [batch]
    return [rows_of_groups(batch, share) for share in deal_groups(groups, updates, generator)]


def deal_groups(groups: Tensor, updates: int, generator: torch.Generator) -> list[Tensor]:
    """Names of groups dealt out at random to the updates of a pass, in equal shares."""
    order = torch.randperm(len(groups), generator=generator)
    return [groups[share.to(groups.device)] for share in order.tensor_split(max(min(updates, len(groups)), 1))]


def rows_of_groups(batch: BatchT, groups: Tensor) -> BatchT:
    """The rows of these groups, in their original order."""
    return batch.take_rows(torch.isin(batch.group, groups))


@dataclass(frozen=True, eq=False)
class Share:
    """Rows ``begin`` to ``end`` of a batch that is cut into many shares: nothing is cut before it is asked for."""

    whole: Trajectories
    begin: int
    end: int

    def rows(self) -> Trajectories:
        return self.whole.take_rows(slice(self.begin, self.end))

    def inputs(self) -> Trajectories:
        """Enough for a policy to evaluate these rows; every other column is still that of the whole."""
        here, action = slice(self.begin, self.end), self.whole.action
        return self.whole.replace(
            inputs=self.whole.inputs.take(lambda column: column[here]), action=None if action is None else action[here]
        )


def share_decisions(batch: Trajectories, size: int, generator: torch.Generator) -> list[Share]:
    """The updates of a pass: the sampled decisions shuffled once, one gather per column, each a row of its own."""
    chosen = batch.sampled.flatten().nonzero().squeeze(1)
    shuffled = batch.take_decisions(chosen[torch.randperm(len(chosen), generator=generator)])
    return [Share(shuffled, begin, min(begin + size, len(chosen))) for begin in range(0, len(chosen), size)]


def deal_rows(batch: Batch, rows: Tensor, cost: Tensor, scope: Scope, processes: int) -> list[Tensor]:
    """What each of several processes computes of ``rows``: neighbours of about equal cost; a process may be left without.

    Args:
        cost: tokens of each row of the batch ``[N]``.
        scope: ``"group"`` keeps groups whole.
    """
    if processes == 1:
        return [rows]
    rows, cost = rows.cpu(), cost.double().cpu()
    units = _groups(batch, rows) if scope == "group" else list(rows.split(1))
    shares: list[list[Tensor]] = [[] for _ in range(processes)]
    total, before = max(float(cost[rows].sum()), 1e-9), 0.0
    for unit in units:
        own = float(cost[unit].sum())
        shares[min(int((before + own / 2) / total * processes), processes - 1)].append(unit)
        before += own
    return [torch.cat(share) if share else rows[:0] for share in shares]


def pack(batch: Batch, rows: Tensor, cost: Tensor, budget: int, scope: Scope, padded: bool) -> list[Tensor]:
    """Slices of ``rows`` whose cost stays within ``budget``.

    Args:
        cost: tokens of each row of the batch ``[N]``.
        scope: ``"group"`` keeps groups whole.
        padded: a slice costs its rows times the longest, and similar lengths go together. Otherwise it costs their sum, and
            neighbours go together: they share prompts.
    """
    if len(rows) == 0:
        return []
    cost = cost.cpu()  # looked at row by row
    rows = rows.cpu()
    if (len(rows) * float(cost[rows].max()) if padded else float(cost[rows].sum())) <= budget:
        return [rows]
    units = _groups(batch, rows) if scope == "group" else [rows[i : i + 1] for i in range(len(rows))]
    longest = [float(cost[unit].max()) for unit in units]
    total = [float(cost[unit].sum()) for unit in units]
    slices: list[Tensor] = []
    current: list[Tensor] = []
    width = filled = 0.0
    count = 0
    for position in sorted(range(len(units)), key=lambda i: longest[i]) if padded else range(len(units)):
        width, count = max(width, longest[position]), count + len(units[position])
        filled += total[position]
        if current and (width * count if padded else filled) > budget:
            slices.append(torch.cat(current))
            current, width, count, filled = [], longest[position], len(units[position]), total[position]
        current.append(units[position])
    return [*slices, torch.cat(current)]


def passes_of_others(batch: Batch, shares: Sequence[Tensor], cost: Tensor, policy: Any, scope: Scope) -> int:
    """The most slices that any process of a team makes of its share: a policy in parts is gone through by all of them together."""
    return max(len(pack(batch, share, cost, policy.token_budget(), scope, policy.pads)) for share in shares)


def _groups(batch: Batch, rows: Tensor) -> list[Tensor]:
    group = batch.group.cpu()[rows]
    return [rows[group == name] for name in torch.unique(group)]


@dataclass(frozen=True)
class TooLarge:
    """A slice for which memory did not suffice.

    Fields:
        rows: of it.
        units: rows, or groups where those stay whole, that it could be cut into.
        tokens: what it costs.
        said: by whoever wanted memory.
    """

    rows: int
    units: int
    tokens: float
    said: str


def each_slice(batch: Batch, cut: Sequence[Tensor], cost: Tensor, scope: Scope, work: Callable[[Tensor], None]) -> TooLarge | None:
    """Does the work of every slice, until memory runs out in one.

    The error itself is not handed on: its frames hold the very memory that is wanted.
    """
    for index in cut:
        try:
            work(index)
        except torch.OutOfMemoryError as problem:
            units = len(_groups(batch, index.cpu())) if scope == "group" else len(index)
            return TooLarge(len(index), units, float(cost.cpu()[index.cpu()].sum()), str(problem).split("\n")[0])
    return None


def cut_smaller(policy: Any, failed: TooLarge) -> None:
    """Halves the slices of a policy after memory ran out in one. It is said once, and checkpoints keep it.

    Raises:
        UserError: if the slice cannot be cut any further; it names the setting that would make it fit.
    """
    if getattr(policy, "sharded", False) and failed.units > 1:
        together = "With --shard all learners go through their slices together, so that none can cut its own smaller on the way"
        raise UserError(f"memory ran out in a slice of {failed.tokens:,.0f} tokens ({failed.said[:200]}). {together}. A new run "
                        f"fits with --slice-tokens {max(1, int(failed.tokens) // 2)}.")  # fmt: skip
    bound = getattr(policy, "slices", None)
    if bound is None or failed.units <= 1:
        what = "a row" if failed.rows == 1 else f"a group of {failed.rows} rows"
        known = getattr(policy, "memory_cure", None)
        cure = "Fewer --envs or a shorter --horizon take less" if known is None else known(failed.rows)
        raise UserError(f"memory does not hold the gradient of {what} ({failed.tokens:,.0f} tokens; {failed.said[:200]}). {cure}.")
    bound.tokens = max(1, int(min(policy.token_budget(), failed.tokens)) // 2)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if not bound.told:
        bound.told = True
        warnings.warn(
            Remark(f"memory ran out in a slice of {failed.tokens:,.0f} tokens: from now on they have at most {bound.tokens:,}, and "
                   f"the update begins again. A new run starts so with --slice-tokens {bound.tokens}."), stacklevel=2,
        )  # fmt: skip
