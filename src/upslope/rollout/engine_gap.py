"""The engine gap: how far recorded log-probabilities are from the policy's own, of engines that compute otherwise than learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from upslope.policies.language_model import LanguageModel
from upslope.rollout.text_rows import sampled_rows
from upslope.types import Completions, Metrics, Sampling, samples_each
from upslope.types.batch import spread

SamplingPrecision = Literal["auto", "fp8"]
"""What our own engine samples in: the precision of products, or eight bits."""
GAP_ROWS = 8
"""Completions of a call that are scored again with the policy: enough to notice other weights, few enough to cost nothing."""
WORST = "engine_gap_worst"


def untruncated(sampling: Sampling) -> bool:
    """Whether every token can be drawn, at probabilities that a policy can compute without knowing the truncation."""
    return sampling.temperature > 0 and sampling.top_k == 0 and sampling.top_p == 1 and sampling.min_p == 0


def gap_metrics(
    policy: LanguageModel, prompts: Sequence[list[int]], n: int | Sequence[int], sampling: Sampling, done: Completions
) -> Metrics:
    """Mean and largest difference between what was recorded of some of the completions and what the policy says of them.

    Rounding where the engine holds the policy's weights, computes as it does and records what it draws from. Of truncated sampling
    nothing is known.
    """
    if not untruncated(sampling) or not bool(done.sampled.any()):
        return {}
    some = spread(len(done.tokens), GAP_ROWS)
    asked = [prompt for prompt, own in zip(prompts, samples_each(n, len(prompts)), strict=True) for _ in range(own)]
    apart = _apart(policy, [asked[row] for row in some.tolist()], sampling, _taken(done, some))
    return {"engine_gap": float(apart.mean()), WORST: float(apart.max())} if len(apart) else {}  # those few may be empty


def _apart(policy: LanguageModel, prompts: list[list[int]], sampling: Sampling, done: Completions) -> Tensor:
    """``[D]``, one per decision."""
    with torch.inference_mode(False), torch.no_grad():
        seen = sampled_rows(policy, prompts, 1, done, sampling).to(policy.device)
        return (policy.evaluate(seen).logp - done.logp).abs()[done.sampled > 0]


def _taken(done: Completions, rows: Tensor) -> Completions:
    columns = {name: getattr(done, name)[rows.to(done.tokens.device)] for name in ("tokens", "sampled", "logp", "entropy")}
    return replace(done, **columns, finish=[done.finish[row] for row in rows.tolist()], kept=None)


def mean_of(found: Sequence[Metrics]) -> Metrics:
    """What several calls told, as one."""
    names = dict.fromkeys(name for each in found for name in each)
    told = {name: [each[name] for each in found if name in each] for name in names}
    return {name: max(values) if name == WORST else sum(values) / len(values) for name, values in told.items()}
