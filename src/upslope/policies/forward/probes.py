"""Probes: what parts compute for each decision from its logits, in chunks; columns with a gradient compute them again for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from upslope.objective.base import Probe, ProbeInputs
from upslope.policies.forward.decisions import Decisions
from upslope.policies.forward.gradient_sums import precise_product
from upslope.policies.forward.logprobs import head_logits, vocabulary_pieces


def probed(
    probes: tuple[Probe, ...], source: Tensor, logits: Callable[[Tensor], Tensor], vocabulary: int, hidden: Tensor, seen: Decisions
) -> dict[str, Tensor]:
    """Columns ``[S]`` of the probes, chunk by chunk; those of differentiable probes carry a gradient to ``source``.

    Args:
        source: ``[S, ...]``, what a chunk's logits are computed from, in the forward pass and again in the backward pass.
        logits: of a chunk of ``source``, before the temperature.
        hidden: what the head is given ``[S, D]``; no gradient goes there but through the logits.
    """

    def columns(chunk: Tensor, given: Tensor, own: Decisions) -> tuple[Tensor, ...]:
        raw = logits(chunk)
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        raw = raw if own.temperature is None else raw / own.temperature.unsqueeze(1)
        gain = raw.new_zeros(len(raw)) if own.advantage is None else own.advantage
        inputs = ProbeInputs(raw, given.to(raw.dtype), own.action, gain, own.key)
        return tuple(probe(inputs if probe.differentiable else inputs._replace(logits=raw.detach())) for probe in probes)

    found: list[tuple[Tensor, ...]] = []
    pieces = vocabulary_pieces(len(source), vocabulary + max(probe.width() for probe in probes), source.is_cuda)
    learned = torch.is_grad_enabled() and any(probe.differentiable for probe in probes)
    # Split and not sliced: the gradient of a slice is as large as the whole, that of a split is put together once.
    chunks = source.split([piece.stop - piece.start for piece in pieces])
    with torch.set_grad_enabled(learned):
        for piece, chunk in zip(pieces, chunks, strict=True):
            given = (chunk, hidden[piece].detach(), seen.map(lambda column, piece=piece: column[piece]))  # type: ignore[misc]
            if learned:  # no generator is asked: probes draw by keys
                found.append(checkpoint(columns, *given, use_reentrant=False, preserve_rng_state=False))
            else:
                found.append(columns(*given))
    return {probe.name: torch.cat(column) for probe, column in zip(probes, zip(*found, strict=True), strict=True)}


def logits_of_head(weight: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Logits of hidden states, in float32 or better, by products in ``dtype``; gradients keep the precision of the weights."""
    matrix = weight.detach().to(dtype)
    return lambda hidden: _HeadLogits.apply(hidden, weight, matrix)


class _HeadLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight, matrix)
        return head_logits(hidden.to(matrix.dtype), matrix)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        hidden, weight, matrix = ctx.saved_tensors
        grad, low = grad.to(matrix.dtype), hidden.to(matrix.dtype)
        to_weight = precise_product(grad.t(), low).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return (grad @ matrix).to(hidden.dtype), to_weight, None
