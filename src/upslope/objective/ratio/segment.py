"""One ratio for each item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from upslope.objective.base import Branch, Ratio
from upslope.objective.functional.lists import Ending, units
from upslope.objective.ratio.granularity import carrier, log_ratio
from upslope.types import Batch


@dataclass(frozen=True)
class SegmentRatio(Ratio):
    r"""A length-normalised ratio for each item (Rank-GRPO): :math:`s_{i,k} = \exp(\frac{1}{T_{i,k}}\sum_{t\in k} d_{i,t})`.

    An answer of one item gives GSPO's ratio, items of one decision the token ratio.

    Fields:
        gradient: ``"token"`` and ``"segment"``, as in `SequenceRatio`; the same while all decisions of an item share an advantage.
        ending: whether the decision that ends a list has a ratio ``"apart"``, or is ``"within"`` its item's mean (released code).
    """

    scope = "segment"

    gradient: Literal["token", "segment"] = "token"
    ending: Ending = "apart"

    def branches(self) -> tuple[str, ...]:
        return ("segment",)

    def needs(self) -> frozenset[str]:
        return frozenset({"segment.item"})

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        unit, log = units(batch, self.ending), log_ratio(batch)
        empty = torch.zeros(batch.rows, int(unit.max()) + 1 if unit.numel() else 1, dtype=log.dtype, device=log.device)
        count = empty.scatter_add(1, unit, batch.sampled.to(log.dtype))
        mean = (empty.scatter_add(1, unit, log) / count.clamp_min(1)).gather(1, unit) * batch.sampled
        log = mean.detach() + carrier(batch) if self.gradient == "token" else mean
        return (Branch("segment", log, log.exp()),)
