"""Embeddings whose gradient is added to the table's in place, where an update adds up gradients so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from upslope.policies.forward.gradient_sums import gradient_of, summed


def embedded(table: nn.Module, ids: Tensor) -> Tensor:
    """The embeddings of tokens ``[S, features]``."""
    if type(table) is nn.Embedding and torch.is_grad_enabled() and summed((table.weight,)):
        return _Embedded.apply(table.weight, ids, table.padding_idx)
    return table(ids)


class _Embedded(torch.autograd.Function):
    """Torch's own way back writes zeros for the whole vocabulary first, and adds them up with what is there afterwards."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None):
        ctx.table, ctx.padding = weight, padding
        ctx.save_for_backward(ids)
        return weight.detach()[ids]

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        (ids,) = ctx.saved_tensors
        if ctx.padding is not None:  # which learns nothing
            grad = grad.masked_fill((ids == ctx.padding).unsqueeze(1), 0.0)
        # By sorting: the same bits every time, where an addition by index would depend on who comes first.
        gradient_of(ctx.table).index_put_((ids,), grad.to(ctx.table.dtype), accumulate=True)
        return None, None, None
