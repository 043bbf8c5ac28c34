"""Low-rank adapters beside matrices that never change: nothing is merged, and both are read where they are.

Matrices that multiply the same input lie one behind the other in one stretch of memory (`lay_together`), so that sampling and
learning read them as one matrix without a copy. Their adapters are small: they are put together anew whenever they have moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from upslope.runtime import torch_private


class LowRank(NamedTuple):
    """Adapters of matrices that multiply the same input: ``(x @ a.T) @ b.T`` is added to their product."""

    a: Tensor
    """One above the other ``[ranks, in]`` in the precision of products; no gradient goes here."""
    b: Tensor
    """``[out, ranks]``, scaled: each in the rows of its own matrix and the columns of its own rank, zero elsewhere."""
    parts: tuple[Tensor, ...]
    """Each A, then each B, as the model has them: gradients go there."""
    scales: tuple[float, ...]


def low_ranks(several: list[list[tuple[Tensor, Tensor, float]]], dtype: torch.dtype) -> list[LowRank]:
    """Adapters of matrices that share an input, each as its A, its B and its scale; those of a whole model in a few launches."""
    wide = [sum(len(a) for a, _, _ in together) for together in several]
    tall = [sum(len(b) for _, b, _ in together) for together in several]
    like = several[0][0][0]
    with torch.no_grad():
        sizes = [ranks * together[0][0].shape[1] for ranks, together in zip(wide, several, strict=True)]
        flat = torch.empty(sum(sizes), dtype=dtype, device=like.device)
        zero = torch.zeros(sum(map(int.__mul__, tall, wide)), dtype=dtype, device=like.device)
        lows = [piece.view(ranks, -1) for piece, ranks in zip(flat.split(sizes), wide, strict=True)]
        highs = [piece.view(-1, ranks) for piece, ranks in zip(zero.split(list(map(int.__mul__, tall, wide))), wide, strict=True)]
        targets = [[*_places(low, high, together)] for low, high, together in zip(lows, highs, several, strict=True)]
        given = [part for together in several for a, b, _ in together for part in (a, b)]
        torch_private.foreach_copy_([place for places in targets for place in places], given)
        scales = [scale for together in several for _, _, scale in together]
        if len(set(scales)) == 1:
            zero *= scales[0]
        else:
            for place, scale in zip((place for places in targets for place in places[1::2]), scales, strict=True):
                place *= scale
    return [
        LowRank(low, high, (*(a for a, _, _ in each), *(b for _, b, _ in each)), tuple(scale for _, _, scale in each))
        for low, high, each in zip(lows, highs, several, strict=True)
    ]


def _places(low: Tensor, high: Tensor, together: list[tuple[Tensor, Tensor, float]]) -> Iterator[Tensor]:
    """Where each A and each B belongs."""
    row = column = 0
    for a, b, _ in together:
        yield low[column : column + len(a)]
        yield high[row : row + len(b), column : column + len(a)]
        row, column = row + len(b), column + len(a)


def low_rank_parts(modules: Sequence[Any]) -> list[tuple[Tensor, Tensor, float]]:
    """A, B and scale of each of peft's modules, which have one adapter each."""
    found = []
    for module in modules:
        (name,) = (name for name in module.active_adapters if name in module.lora_A)
        found.append((module.lora_A[name].weight, module.lora_B[name].weight, float(module.scaling[name])))
    return found


def joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Matrices or vectors as one, each below the one before; where they lie so in memory it is that memory itself."""
    if not lie_together(parts, dtype):
        return torch.cat([each.detach().to(dtype) for each in parts])
    first = parts[0].detach()
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def lie_together(parts: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether parts of this precision lie one behind the other in one stretch of memory."""
    place, home = parts[0].data_ptr(), parts[0].untyped_storage().data_ptr()
    for part in parts:
        if part.dtype != dtype or part.data_ptr() != place or not part.is_contiguous() or part.untyped_storage().data_ptr() != home:
            return False
        place += part.numel() * part.element_size()
    return True


def lay_together(parts: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> None:
    """Moves what the parts hold to one stretch of memory, each part behind the one before; the parts stay the same objects."""
    there = parts[0].device
    if there.type == device.type and device.index in (None, there.index) and lie_together(parts, dtype):
        return
    room = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=dtype, device=device)
    for part, place in zip(parts, room.split([len(part) for part in parts]), strict=True):
        part.data = place.copy_(part.detach())
