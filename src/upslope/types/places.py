"""Finding places among very many numbers: those of tasks by their hashes, and those of the smallest values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
FEW = 8
"""So many times fewer tasks than names are few: each is looked up by itself."""


def smallest(values: Tensor, count: int) -> Tensor:
    """Places of the smallest values ``[M]``, ascending, of equal ones the first first: ``argsort(stable=True)[:count]``, NaN last.

    Of many values a few are found much sooner than all are sorted.
    """
    places = torch.arange(len(values))
    if 0 < count < len(values):
        last = values.topk(count, largest=False, sorted=False).values.max()
        places = (~(values > last)).nonzero().squeeze(1)  # not "<=", of which NaN is none
    return places[torch.argsort(values[places], stable=True)][: max(count, 0)]


def places(names: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
    """Where each task ``[M]`` stands among names ``[K]`` in any order, none twice, and whether it does; else its place is any."""
    own, asked = names.numpy(), tasks.numpy()
    if FEW * len(asked) < len(own):
        near = found_in(own, asked)
        place, known = _searched(own[near], asked)
        place = near[place] if len(near) else place
    else:
        place, known = _hashed(own, asked)
    return torch.from_numpy(place), torch.from_numpy(known)


def found_in(names: Array, few: Array) -> Array:
    """The places of the names that are among a few, ascending. Only those that share their lowest bits with one are compared."""
    bits = 0xFFFF
    like = np.zeros(bits + 1, bool)
    like[few & bits] = True
    near = like[names & bits].nonzero()[0]
    return near[np.isin(names[near], few)]


def _searched(names: Array, tasks: Array) -> tuple[Array, Array]:
    """`places` by a binary search."""
    if not len(names):
        return np.zeros(len(tasks), np.int64), np.zeros(len(tasks), bool)
    order = np.argsort(names)
    place = order[np.searchsorted(names[order], tasks).clip(max=len(names) - 1)]
    return place, names[place] == tasks


def _hashed(names: Array, tasks: Array) -> tuple[Array, Array]:
    """`places` by a hash table on the lowest bits, which looks at one place of memory for a task where a search looks at many.

    What it cannot find, as another name has the slot, is searched for among the names that lost theirs.
    """
    bits = (2 << max(len(names) - 1, 1).bit_length()) - 1
    slot, number = names & bits, np.arange(len(names), dtype=np.int32)
    table = np.zeros(bits + 1, np.int32)
    table[slot] = number
    place = table[tasks & bits].astype(np.int64)
    known = names[place] == tasks if len(names) else np.zeros(len(tasks), bool)
    lost = (table[slot] != number).nonzero()[0]
    if len(lost):
        left = (~known).nonzero()[0]
        at, there = _searched(names[lost], tasks[left])
        place[left], known[left] = lost[at], there
    return place, known
