"""Tables of what is known of each task: a column of their numbers, sorted, and columns of numbers beside it.

Looking up is a binary search, and writing copies the columns once: neither sorts what is known already.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from upslope.objective.base import State
from upslope.types import Batch
from upslope.types.places import FEW, places


def empty(*names: str) -> State:
    """A table with these columns and nothing in them."""
    blank = torch.zeros(0, dtype=torch.float64)
    return {"task": torch.zeros(0, dtype=torch.int64), **{name: blank.clone() for name in names}}


def looked_up(state: State, tasks: Tensor, start: Mapping[str, float]) -> tuple[dict[str, Tensor], Tensor]:
    """Columns of these tasks ``[M]``, what they start with for those never seen; and which were seen."""
    names = state["task"].to(tasks.device)
    blank = {name: torch.full(tasks.shape, value, dtype=torch.float64, device=tasks.device) for name, value in start.items()}
    if not len(names):
        return blank, torch.zeros_like(tasks, dtype=torch.bool)
    if tasks.is_cuda or FEW * len(tasks) < len(names):
        place = torch.searchsorted(names, tasks).clamp(max=len(names) - 1)
        known = names[place] == tasks
    else:
        place, known = places(names, tasks)
    return {name: torch.where(known, state[name].to(tasks.device)[place], blank[name]) for name in start}, known


def merged(state: State, tasks: Tensor, columns: Mapping[str, Tensor]) -> State:
    """The table with these tasks' columns in place of what it knew of them; ``tasks`` are sorted, none twice."""
    names = state["task"]
    place = torch.searchsorted(names, tasks)
    known = names[place.clamp(max=len(names) - 1)] == tasks if len(names) else torch.zeros_like(tasks, dtype=torch.bool)
    new, at = ~known, place[~known]
    grown: State = {"task": _inserted(names, at, tasks[new])}
    place = place + new.cumsum(0) - new.long()  # behind the new ones before it
    for name, column in columns.items():
        grown[name] = _inserted(state[name], at, column[new])
        grown[name][place] = column
    return grown


def _inserted(column: Tensor, place: Tensor, values: Tensor) -> Tensor:
    """A copy of a column with further values, each before its place. What lies between them is copied as it stands."""
    pieces = column.tensor_split(place)
    between = itertools.chain.from_iterable(zip(pieces, values.split(1), strict=False))
    return torch.cat([*between, pieces[-1]]) if len(place) else column.clone()


def totals(batch: Batch, column: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The tasks of a batch (or what else ``keys`` names ``[N]``), sorted; of each the sum of a column ``[N]``, and its rows."""
    seen, index = torch.unique((batch.task if keys is None else keys).cpu(), return_inverse=True)
    sums = torch.zeros(2, len(seen), dtype=torch.float64)
    sums[0].index_add_(0, index, column.detach().cpu().double())
    sums[1].index_add_(0, index, torch.ones(len(index), dtype=torch.float64))
    return seen, sums[0], sums[1]


def success(batch: Batch) -> Tensor:
    """How far each row succeeded ``[N]``: its reward, cut to [0, 1]."""
    return batch.reward.clamp(0, 1)
