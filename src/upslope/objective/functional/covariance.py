"""Which decisions drive the entropy down: the covariance of advantage and log-probability over an update."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.types import Batch

Source = Literal["current", "proximal"]
"""Whose log-probabilities: those of each update cost a pass without gradient, those of the step's start do not."""


def covariance_needs(source: Source) -> frozenset[str]:
    """Columns that `covariance` reads. The proximal ones also make the first update's current ones free."""
    return frozenset({"proximal.logp", f"{source}.logp"})


def covariance(batch: Batch, source: Source) -> Tensor:
    r"""Each decision's part of the covariance, ``[N, T]``; minus infinity where nothing was sampled or a column is not finite.

    .. math::  c_t = (A_t - \bar A)(\log\pi_t - \overline{\log\pi})

    with means over the sampled decisions. A gradient step changes the entropy by about minus its mean.
    """
    view = batch.current if source == "current" else batch.proximal
    if view is None or batch.advantage is None:
        raise MethodError(f"the covariance needs advantages and the {source} log-probabilities, and this batch lacks one.")
    logp = view.logp.detach()
    on = (batch.sampled > 0) & logp.isfinite()
    count = on.sum().clamp_min(1)
    advantage = torch.where(on, batch.advantage, 0.0)
    logp = torch.where(on, logp, 0.0)
    product = (advantage - advantage.sum() / count) * (logp - logp.sum() / count)
    return torch.where(on, product, -torch.inf)


def share_count(batch: Batch, fraction: float) -> int:
    """How many decisions a fraction of the update's is, rounded down, and at least one."""
    # The small number undoes the rounding of e.g. 0.3 * 10.
    return max(1, int(fraction * int((batch.sampled > 0).sum()) + 1e-9))
