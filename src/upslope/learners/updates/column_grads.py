"""Gradients of a method's loss in the columns of the policy: where the objective ends and the policy's backward pass begins."""

from __future__ import annotations

import torch
from torch import Tensor

from upslope.learners.metrics import MetricSums, add_slice_metrics
from upslope.learners.token_trace import TokenTrace
from upslope.objective import estimator
from upslope.types import Method, Trajectories, View


def as_leaf(column: Tensor) -> Tensor:
    """The column as the objective sees it: its gradient stops here, to go through the policy in one pass afterwards."""
    return column.detach().requires_grad_()


def column_grads(
    method: Method, piece: Trajectories, leaves: View, sums: MetricSums, trace: TokenTrace | None = None, slices: int = 1
) -> dict[str, Tensor]:
    """Gradient of a slice's loss in each of the policy's columns that it depends on; what the slice showed goes to the sums.

    Args:
        slices: of the update, this one among them.
    """
    proximal = piece.proximal or leaves.map(Tensor.detach)
    piece = piece.replace(current=leaves, proximal=proximal)
    losses, notes = estimator.decision_losses(method, piece)
    columns = leaves.columns()
    found = torch.autograd.grad(losses.sum(), list(columns.values()), allow_unused=True)
    with torch.no_grad():
        add_slice_metrics(sums, piece, losses, notes, found[0], slices)
        if trace is not None:
            trace.add(method, piece, notes)
    return {name: grad for name, grad in zip(columns, found, strict=True) if grad is not None}
