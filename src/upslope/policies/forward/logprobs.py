"""Log-probabilities and entropies from hidden states or logits, in chunks: few copies of a vocabulary live at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from upslope.policies.forward.gradient_sums import add_product, precise_product, summed
from upslope.policies.forward.triton import launch

CHUNK_FLOATS, GPU_CHUNK_FLOATS = 2**24, 2**27
"""Logits that are computed together. On an H200 a product with 150,000 tokens runs at 275 TFLOP/s with 441 rows, 450 with twice."""


def chosen_logp(
    hidden: Tensor, weight: Tensor, ids: Tensor, temperature: Tensor | None, want_entropy: bool, dtype: torch.dtype,
    held: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Log-probabilities of chosen tokens and entropies, ``[S]`` in float32, from what the head is given.

    Logits are computed in ``dtype``, chunk by chunk, and again in the backward pass: they are never kept.

    Args:
        hidden: ``[S, features]``.
        weight: the head's ``[V, features]``.
        ids: chosen tokens ``[S]``.
        temperature: temperatures ``[S]``; None is one everywhere.
        held: the weight in ``dtype``, where somebody holds it.
    """
    logp, entropy = _ChosenLogp.apply(hidden, weight, ids, temperature, want_entropy, dtype, held)
    return {"logp": logp, "entropy": entropy} if want_entropy else {"logp": logp}


class _ChosenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: Tensor | None, want_entropy: bool, dtype: torch.dtype,
        held: Tensor | None,
    ):  # fmt: skip
        count = len(hidden)
        precise = torch.promote_types(dtype, torch.float32)
        logp, normaliser, entropy = (torch.empty(count, dtype=precise, device=hidden.device) for _ in range(3))
        low, matrix = hidden.to(dtype), weight.to(dtype) if held is None else held
        for piece in vocabulary_pieces(count, weight.shape[0], hidden.is_cuda):
            if launch.helps(hidden):
                logits, own_temperature = head_logits(low[piece], matrix), None if temperature is None else temperature[piece]
                launch.chosen(logits, ids[piece], own_temperature, logp[piece], normaliser[piece], entropy[piece], want_entropy)
                continue
            logits = _scaled(low[piece], matrix, temperature, piece)
            torch.logsumexp(logits, 1, out=normaliser[piece])
            logp[piece] = logits.gather(1, ids[piece].unsqueeze(1)).squeeze(1) - normaliser[piece]
            if want_entropy:
                logits -= normaliser[piece].unsqueeze(1)
                entropy[piece] = logits.exp().mul_(logits).sum(1).neg_()
        ctx.save_for_backward(hidden, weight, ids, temperature, normaliser, entropy if want_entropy else None, held)
        ctx.dtype, ctx.summed = dtype, summed((weight,))
        return logp, entropy if want_entropy else None

    @staticmethod
    def backward(ctx: Any, logp_grad: Tensor, entropy_grad: Tensor | None):  # type: ignore[override]
        hidden, weight, *_, held = ctx.saved_tensors
        low, matrix = hidden.to(ctx.dtype), weight.to(ctx.dtype) if held is None else held
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] and not ctx.summed else None
        for piece in vocabulary_pieces(len(hidden), weight.shape[0], hidden.is_cuda):
            grad = _logit_grad(ctx, low[piece], matrix, piece, logp_grad, entropy_grad)
            to_hidden[piece] = grad @ matrix
            if ctx.summed:
                add_product(ctx.summed, grad.t(), low[piece])
            elif to_weight is not None:
                if grad.dtype == to_weight.dtype:
                    to_weight.addmm_(grad.t(), low[piece])
                else:
                    to_weight += precise_product(grad.t(), low[piece])
        return to_hidden, to_weight, None, None, None, None, None


def _logit_grad(ctx: Any, low: Tensor, matrix: Tensor, piece: slice, logp_grad: Tensor, entropy_grad: Tensor | None) -> Tensor:
    """The loss's grad in the logits of a piece, in the precision of products."""
    hidden, _, ids, temperature, normaliser, entropy, _ = ctx.saved_tensors
    ids, normaliser, logp_grad = ids[piece], normaliser[piece], logp_grad[piece]
    temperature = None if temperature is None else temperature[piece]
    if entropy is None or entropy_grad is None:
        entropy = entropy_grad = None
    else:
        entropy, entropy_grad = entropy[piece], entropy_grad[piece]
    logits = head_logits(low, matrix)
    if launch.helps(hidden):
        return launch.chosen_back(logits, ids, temperature, normaliser, entropy, logp_grad, entropy_grad, ctx.dtype)
    if temperature is not None:
        logits /= temperature.unsqueeze(1)
    logits -= normaliser.unsqueeze(1)
    grad = logits.exp()  # the probabilities; from here on the loss's grad in the logits
    if entropy is None or entropy_grad is None:
        grad *= -logp_grad.unsqueeze(1)
    else:  # of the entropy: -p (log p + H)
        logits += entropy.unsqueeze(1)
        logits *= entropy_grad.unsqueeze(1)
        logits += logp_grad.unsqueeze(1)
        grad *= logits.neg_()
    grad.scatter_add_(1, ids.unsqueeze(1), logp_grad.unsqueeze(1))
    if temperature is not None:
        grad /= temperature.unsqueeze(1)
    return grad.to(ctx.dtype)


def vocabulary_pieces(count: int, vocabulary: int, on_gpu: bool) -> list[slice]:
    """So many positions in pieces whose logits fit the memory together."""
    size = max(1, (GPU_CHUNK_FLOATS if on_gpu else CHUNK_FLOATS) // vocabulary)
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def _scaled(hidden: Tensor, matrix: Tensor, temperature: Tensor | None, piece: slice) -> Tensor:
    logits = head_logits(hidden, matrix)
    return logits if temperature is None else logits.div_(temperature[piece].unsqueeze(1))


def head_logits(hidden: Tensor, matrix: Tensor) -> Tensor:
    """``hidden @ matrix.T`` in float32 or better: logits rounded to half precision would move log-probabilities by percents."""
    return precise_product(hidden, matrix.t())


def learning_temperature(temperature: Tensor | None) -> Tensor | None:
    """What to divide logits by; None where that is one everywhere. A temperature of 0 (greedy) is read as 1."""
    if temperature is None or bool((temperature == 1).all()):
        return None
    return temperature.where(temperature > 0, 1.0)


def logp_and_entropy(logits: Tensor, action: Tensor, temperature: Tensor | None, want_entropy: bool) -> dict[str, Tensor]:
    """Of the chosen tokens and of the whole distribution, ``[N, T]`` in float32, from logits ``[N, T, V]``."""
    flat = logits.flatten(0, 1)
    divisor = learning_temperature(temperature)
    # In chunks, so that few copies of the vocabulary live at once. Split and not sliced: the gradient of a slice is as large
    # as the whole, that of a split is put together once.
    size = max(1, CHUNK_FLOATS // flat.shape[1])
    chosen = action.flatten().unsqueeze(1).split(size)
    divisors = [None] * len(chosen) if divisor is None else divisor.flatten().unsqueeze(1).split(size)
    logp, entropy = [], []
    for piece, ids, temperature in zip(flat.split(size), chosen, divisors, strict=True):
        scaled = piece.float() if temperature is None else piece.float() / temperature
        normaliser = scaled.logsumexp(1, keepdim=True)
        logp.append(scaled.gather(1, ids) - normaliser)
        if want_entropy:
            entropy.append(normaliser - ((scaled - normaliser).exp() * scaled).sum(1, keepdim=True))
    columns = {"logp": torch.cat(logp).view_as(action)}
    return columns | {"entropy": torch.cat(entropy).view_as(action)} if want_entropy else columns
