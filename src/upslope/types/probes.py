"""Probes: what a policy computes inside its forward pass for parts that need more than a column of it."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.types.batch import decision_keys, salt
from upslope.types.part import Part


class Probe(Part):
    """Something a policy computes for each decision inside its forward pass; the column has the probe's ``name``.

    The objective never sees a vocabulary: what takes logits, hidden states or the head is in here, on a chunk of decisions.
    """

    name: ClassVar[str]
    differentiable: ClassVar[bool] = False
    """Whether a loss may descend the column: its gradient then goes through the chunk's logits, which the backward pass computes
    again. The column of any other probe is a constant."""

    def width(self) -> int:
        """How many numbers it holds for a decision beside those of the vocabulary; chunks are the smaller for it."""
        return 0

    def __call__(self, chunk: ProbeInputs) -> Tensor:
        """The column ``[M]`` of the chunk's decisions."""
        raise NotImplementedError


class ProbeInputs(NamedTuple):
    """What a probe sees: a chunk of ``M`` decisions inside a language model's forward pass."""

    logits: Tensor
    """``[M, V]`` float32 or better, at the recorded temperature."""
    hidden: Tensor
    """``[M, D]``: what the head turned into logits."""
    action: Tensor
    """``[M]`` ids."""
    advantage: Tensor
    """``[M]``, zero where there is none yet."""
    key: Tensor | None = None
    """``[M]`` integers that name each decision of this update: what `uniforms` draws from."""

    def uniforms(self, probe: Probe, count: int) -> Tensor:
        """Random numbers in [0, 1) ``[M, count]`` for a probe: a function of the decision, the update and the kind of probe."""
        if self.key is None:
            raise MethodError(f"{type(probe).__name__} draws random numbers, and these rows have no keys to draw them from.")
        return decision_keys(self.key + salt(type(probe).__name__), count).to(torch.float64) / (1 << 53)
