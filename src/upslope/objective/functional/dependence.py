"""How much each decision depends on what the policy was shown (VPPO)."""

from __future__ import annotations

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.ratio import LOG_LIMIT
from upslope.types import Batch

LARGEST = 10.0
"""A decision that is impossible without seeing counts as this dependent."""


def dependence(batch: Batch, reference: str) -> Tensor:
    r"""Of each decision on the inputs that ``reference`` does not see, ``[N, T]``.

    .. math::  S_t = \mathrm{clip}(e^x - x - 1,\ 0,\ 10), \qquad  x = \log\pi_{old}(y_t \mid blind) - \log\pi_{old}(y_t)

    Never negative; zero where nothing was sampled or a log-probability is missing.
    """
    if reference not in batch.reference or batch.proximal is None:
        raise MethodError(
            f"the dependence compares the proximal policy with the reference {reference!r}; this batch has "
            f"{', '.join([*(['proximal'] if batch.proximal is not None else []), *batch.reference]) or 'neither'}."
        )
    difference = (batch.reference[reference].logp - batch.proximal.logp).detach()
    x = torch.where(difference.isfinite() & (batch.sampled > 0), difference, 0.0).clamp(-LOG_LIMIT, LOG_LIMIT)
    return (x.exp() - x - 1).clamp(0.0, LARGEST)


def dependence_needs(reference: str) -> frozenset[str]:
    """Columns that `dependence` reads."""
    return frozenset({"proximal.logp", f"reference.{reference}.logp"})
