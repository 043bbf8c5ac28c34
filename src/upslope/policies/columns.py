"""From logits to columns, in chunks of decisions: few copies of a vocabulary live at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from upslope.objective.base import Seen

CHUNK_FLOATS = 2**24


def logp_and_entropy(logits: Tensor, action: Tensor, temperature: Tensor | None, want_entropy: bool) -> dict[str, Tensor]:
    """Of the chosen tokens and of the whole distribution, ``[N, T]`` in float32."""
    flat = logits.flatten(0, 1)
    divisor = None if temperature is None or bool((temperature == 1).all()) else temperature.where(temperature > 0, 1.0)
    # In chunks, so that few copies of the vocabulary live at once. Split and not sliced: the gradient of a slice is as large
    # as the whole, that of a split is put together once.
    size = max(1, CHUNK_FLOATS // flat.shape[1])
    chosen = action.flatten().unsqueeze(1).split(size)
    divisors = [None] * len(chosen) if divisor is None else divisor.flatten().unsqueeze(1).split(size)
    logp, entropy = [], []
    for piece, ids, heat in zip(flat.split(size), chosen, divisors, strict=True):
        scaled = piece.float() if heat is None else piece.float() / heat
        normaliser = scaled.logsumexp(1, keepdim=True)
        logp.append(scaled.gather(1, ids) - normaliser)
        if want_entropy:
            entropy.append(normaliser - ((scaled - normaliser).exp() * scaled).sum(1, keepdim=True))
    columns = {"logp": torch.cat(logp).view_as(action)}
    return columns | {"entropy": torch.cat(entropy).view_as(action)} if want_entropy else columns


def probed(
    probes: tuple[Any, ...], logits: Tensor, hidden: Tensor, action: Tensor, temperature: Tensor | None, advantage: Tensor
) -> dict[str, Tensor]:
    """Columns ``[N, T]`` of the probes, in chunks of decisions; none carries a gradient."""
    size = max(1, CHUNK_FLOATS // logits.shape[-1])
    heat = torch.ones_like(advantage) if temperature is None else temperature.where(temperature > 0, 1.0)
    found: dict[str, list[Tensor]] = {probe.name: [] for probe in probes}
    pieces = [column.flatten(0, 1).split(size) for column in (logits, hidden, action, heat, advantage)]
    with torch.no_grad():
        for raw, state, ids, heats, gain in zip(*pieces, strict=True):
            seen = Seen(raw.float() / heats.unsqueeze(1), state.float(), ids, gain)
            for probe in probes:
                found[probe.name].append(probe(seen))
    return {name: torch.cat(columns).view_as(action) for name, columns in found.items()}
