"""Tensors in parts: of each a process holds some rows, as torch's `DTensor` has them. Other tensors are whole in every process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_part(tensor: Tensor) -> bool:
    """Whether this process holds a part of a tensor only. Torch's own module of such tensors takes a while to import."""
    return hasattr(tensor, "to_local")


def held_here(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: the memory itself."""
    if not is_part(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()  # type: ignore[attr-defined]


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this process holds of another one like it: rows, as many in each process but the last."""
    if not is_part(like):
        return whole
    mesh: Any = like.device_mesh  # type: ignore[attr-defined]
    each = -(-len(whole) // mesh.size())
    return whole[mesh.get_local_rank() * each : (mesh.get_local_rank() + 1) * each]


def divided(whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor as the parts that another one, of the same shape, has."""
    if not is_part(like):
        return whole
    from torch.distributed.tensor import DTensor

    part = part_of(whole, like).to(like.device, copy=True)
    known: Any = like
    return DTensor.from_local(
        part, known.device_mesh, known.placements, run_check=False, shape=like.shape, stride=like.stride()
    )  # fmt: skip


def put_together(tensor: Tensor) -> Tensor:
    """The whole of a tensor in parts, where those are. All processes must ask for it."""
    return tensor.detach().full_tensor() if is_part(tensor) else tensor  # type: ignore[attr-defined]


def put_together_for_saving(tensor: Tensor, keep: bool) -> Tensor:
    """The same in this machine's memory, where it is to be kept; otherwise nothing of it, which needs room for a moment only."""
    if not is_part(tensor):
        return tensor
    whole = put_together(tensor)
    return whole.cpu() if keep else whole.new_empty(0)
