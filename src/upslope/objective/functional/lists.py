"""Answers that are lists: which decision belongs to which item, what lies beyond the last one, and where the list was ended."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.functional.last_decision import last_decision
from upslope.types import Batch, Ended

Ending = Literal["apart", "within"]
"""The decision that ends a list: a unit of its own, or part of the item it stands in, the next one behind a closing separator."""


def items_of(batch: Batch) -> Tensor:
    """Number of the item each decision belongs to ``[N, T]``, from 0."""
    if "item" not in batch.segment:
        raise MethodError("this part looks at items, and the batch does not say where they begin and end (segment 'item').")
    return batch.segment["item"].clamp_min(0)


def asked_items(batch: Batch) -> Tensor | None:
    """How many items each row should have ``[N, 1]``; ``None`` where the task does not ask for a list."""
    asked = batch.label.get("items")
    return None if asked is None else asked.unsqueeze(1)


def closing(batch: Batch) -> Tensor:
    """The decision ``[N, T]`` by which a row ended itself."""
    if batch.ended is None:
        return torch.zeros_like(batch.sampled, dtype=torch.bool)
    return last_decision(batch.sampled) & (batch.ended == Ended.TERMINATED)


def units(batch: Batch, ending: Ending) -> Tensor:
    """What belongs together ``[N, T]``: each item, all that lies beyond those asked for, and the ending if it stands apart."""
    item, asked = items_of(batch), asked_items(batch)
    if asked is None:
        return item
    unit = torch.minimum(item, asked)
    return torch.where(closing(batch), asked + 1, unit) if ending == "apart" else unit
