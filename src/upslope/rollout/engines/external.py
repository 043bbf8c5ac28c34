"""Completions of external engines, row by row, as the columns everybody here reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from upslope.policies.language_model import LanguageModel
from upslope.rollout.decode.record import StopStrings
from upslope.runtime.seeding import stable_hash
from upslope.types import Completions, Finish, Sampling


class Recorded(NamedTuple):
    """One completion: its ids, the stop token among them, and what was recorded of each; no entropy is none."""

    tokens: list[int]
    logp: list[float]
    entropy: list[float] | None
    finish: Finish


def ended(tokens: Sequence[int], stops: frozenset[int]) -> int:
    """How many of the tokens there are up to and including the first stop token."""
    return next((place + 1 for place, token in enumerate(tokens) if token in stops), len(tokens))


def cut_at_stops(rows: Sequence[Recorded], policy: LanguageModel, sampling: Sampling) -> list[Recorded]:
    """The rows as if each had been stopped where it had first said one of the sampling's stop texts.

    What an engine says before that does not depend on it, so cutting afterwards is exact; only the rest was sampled in vain.
    """
    if not sampling.stop:
        return list(rows)
    heard = StopStrings(sampling.stop, policy.decode, policy.pad_id)
    found = []
    for row in rows:
        end = heard.end(row.tokens)
        entropy = None if row.entropy is None else row.entropy[:end]
        found.append(Recorded(row.tokens[:end], row.logp[:end], entropy, "stop") if end else row)
    return found


def as_completions(rows: Sequence[Recorded], policy: LanguageModel) -> Completions:
    """The rows side by side, on the policy's device. Entropies that nobody recorded are NaN."""
    width = max(max((len(row.tokens) for row in rows), default=0), 1)

    def column(pick: Callable[[Recorded], Sequence[float]], blank: float, dtype: torch.dtype) -> Tensor:
        found = [[*pick(row), *[blank] * (width - len(row.tokens))] for row in rows]
        return torch.tensor(found, dtype=dtype, device=policy.device)

    nothing = float("nan")
    return Completions(
        tokens=column(lambda row: row.tokens, policy.pad_id, torch.long),
        sampled=column(lambda row: [1.0] * len(row.tokens), 0.0, torch.float32),
        logp=column(lambda row: row.logp, 0.0, torch.float32),
        entropy=column(lambda row: [nothing] * len(row.tokens) if row.entropy is None else row.entropy, 0.0, torch.float32),
        finish=[row.finish for row in rows],
    )


def seed_of(uniforms: Tensor) -> int:
    """A seed for an engine that draws its own numbers: 31 bits, a function of those it was to draw with."""
    return stable_hash(str(uniforms.flatten()[:8].tolist())) >> 32
