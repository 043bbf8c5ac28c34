"""Averaged how? Each gives the weight of every decision in the whole update; empty rows are in no count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Aggregate
from upslope.types import Batch


def _counted(batch: Batch) -> Tensor:
    return batch.sampled if batch.counted is None else batch.counted


def _rows(counted: Tensor) -> Tensor:
    return (counted.sum(1) > 0).sum().clamp_min(1)


@dataclass(frozen=True)
class TokenMean(Aggregate):
    """Every counted decision of the update counts the same (DAPO): long answers weigh more than short ones."""

    by_row: ClassVar = False

    def __call__(self, batch: Batch) -> Tensor:
        counted = _counted(batch)
        return counted / counted.sum().clamp_min(1)


@dataclass(frozen=True)
class SequenceMeanTokenMean(Aggregate):
    """Every answer counts the same, whatever its length (GRPO, GSPO): a token of a long answer weighs little."""

    def __call__(self, batch: Batch) -> Tensor:
        counted = _counted(batch)
        return counted / counted.sum(1, keepdim=True).clamp_min(1) / _rows(counted)


@dataclass(frozen=True)
class SequenceMeanTokenSum(Aggregate):
    """The sum over an answer, averaged over answers (REINFORCE): the unbiased policy gradient."""

    def __call__(self, batch: Batch) -> Tensor:
        counted = _counted(batch)
        return counted / _rows(counted)


@dataclass(frozen=True)
class SequenceSumTokenMean(Aggregate):
    """The mean over an answer, summed over answers: the step grows with the batch."""

    def __call__(self, batch: Batch) -> Tensor:
        counted = _counted(batch)
        return counted / counted.sum(1, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class GroupMean(Aggregate):
    """Every group counts the same, within it every answer, within that every token: a mean over contests of any size."""

    def __call__(self, batch: Batch) -> Tensor:
        counted = _counted(batch)
        there = (counted.sum(1) > 0).to(counted.dtype)
        index, groups = batch.group_index()
        size = counted.new_zeros(groups).index_add_(0, index, there)
        share = there / size[index].clamp_min(1) / (size > 0).sum().clamp_min(1)
        return counted / counted.sum(1, keepdim=True).clamp_min(1) * share.unsqueeze(1)


@dataclass(frozen=True)
class ConstantLength(Aggregate):
    """The sum over an answer divided by a length that is fixed for the run, averaged over answers (Dr.GRPO).

    Fields:
        length: the divisor; 0 takes the run's token limit. It only scales the loss, the same for long and short answers.
    """

    ranges: ClassVar = {"length": "[0, inf)"}

    length: int = 0

    def __call__(self, batch: Batch) -> Tensor:
        length = self.length or batch.horizon
        if length <= 0:
            raise MethodError("ConstantLength has no length: the batch does not say how long a row may be; set aggregate.length.")
        counted = _counted(batch)
        return counted / length / _rows(counted)


@dataclass(frozen=True)
class ConstantSum(Aggregate):
    """Every counted decision weighs the same whatever the batch: the sum over all, divided by a number (NFT).

    Fields:
        divisor: only scales the loss; with gradient clipping a larger one is clipped less often.
    """

    by_row: ClassVar = False

    divisor: float = 1000.0

    def __post_init__(self) -> None:
        if not self.divisor > 0:
            raise MethodError(f"ConstantSum.divisor is {self.divisor:g}; it is above 0.")

    def __call__(self, batch: Batch) -> Tensor:
        return _counted(batch) / self.divisor
