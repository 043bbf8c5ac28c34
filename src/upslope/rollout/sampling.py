"""How tokens are drawn, what an engine gives back, and what is asked of any engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel

Finish = Literal["stop", "length", "paused"]
"""``paused`` is never the engine's word: a rollout says it of an answer that it will go on with."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: at a temperature, then cut to ``top_k``, then ``top_p`` of what is left, then ``min_p``.

    Fields:
        max_tokens: The most tokens a completion may have, its stop token among them.
        temperature: Larger is more varied; 1 is the model's own distribution, 0 takes the likeliest token.
        top_k: Only the so many likeliest tokens; 0 is all.
        top_p: Only the likeliest tokens that together have this probability; 1 is all.
        min_p: Only tokens at least this share as likely as the likeliest; 0 is all.
        stop: Texts that end a completion once it holds one of them, as a stop token does.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        _check("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 (greedy) or larger")
        _check("top_k", self.top_k, self.top_k >= 0, "0 (all) or larger")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1 (all)")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "between 0 (all) and 1")
        _check("stop", self.stop, all(self.stop), "texts of at least one character")  # type: ignore[arg-type]


def _check(name: str, value: float, fine: bool, wanted: str) -> None:
    if not fine:
        raise UserError(f"sampling with {name}={value}: it must be {wanted}.")


@dataclass(frozen=True, eq=False)
class Completions:
    """What was sampled: ``R`` rows, the samples of one prompt side by side, ``T`` as long as the longest."""

    tokens: Tensor
    """``[R, T]`` ids, padded on the right. The stop token is a decision and stands among them."""
    sampled: Tensor
    """``[R, T]``, 1 on generated tokens."""
    logp: Tensor
    """``[R, T]``, of the distribution drawn from: temperature and truncation are in it. Greedy has 0."""
    entropy: Tensor
    """``[R, T]``, of the same distribution."""
    finish: list[Finish]
    """Per row: the model stopped, or the limit cut it."""


class Draw(NamedTuple):
    """One token per row, with the log-probability and entropy of the distribution it was drawn from."""

    token: Tensor
    logp: Tensor
    entropy: Tensor


class Engine(Protocol):
    """Whatever continues prompts: the torch engine, vLLM, a server."""

    def generate(
        self,
        prompts: Sequence[list[int]],
        n: int,
        sampling: Sampling,
        uniforms: Tensor,
        limits: Sequence[int] | None = None,
        keep: bool = False,
    ) -> Completions:
        """Continues each prompt ``n`` times; see `upslope.rollout.engine.TorchEngine.generate`.

        ``keep`` says that the policy will learn from these answers as they are: what it computed may be kept for that.
        """

    def sync(self, policy: LanguageModel) -> None:
        """Continue with this policy's weights from now on."""


def draw_tokens(logits: Tensor, sampling: Sampling, uniform: Tensor) -> Draw:
    """One token per row of logits ``[B, V]``, at the point ``uniform [B]`` of its cumulative distribution."""
    logits = logits.float()
    if sampling.temperature == 0:
        certain = torch.zeros(len(logits), device=logits.device)
        return Draw(logits.argmax(1), certain, certain)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    logits = _truncated(logits, sampling)
    logp = logits.log_softmax(1)
    share = logp.exp()
    entropy = -(share * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(1)  # 0 · log 0 = 0
    # In float64 the largest uniform stays below the total, and a token without probability has an interval without length.
    cumulative = share.cumsum(1, dtype=torch.float64)
    target = uniform.double().unsqueeze(1) * cumulative[:, -1:]
    place = torch.searchsorted(cumulative, target, right=True).clamp_max(logits.shape[1] - 1)
    return Draw(place.squeeze(1), logp.gather(1, place).squeeze(1), entropy)


def _truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits with what may not be drawn at minus infinity. Each rule is a floor: all tokens as likely as the last to stay, stay."""
    floors = []
    if 0 < sampling.top_k < logits.shape[1]:
        floors.append(logits.topk(sampling.top_k, dim=1).values[:, -1:])
    if sampling.top_p < 1:
        left = logits if not floors else logits.masked_fill(logits < floors[0], -torch.inf)
        ordered = left.sort(dim=1, descending=True).values
        share = ordered.softmax(1)
        dropped = share.cumsum(1) - share >= sampling.top_p
        dropped[:, 0] = False  # Rounding may give the likeliest token a little company before it; it always stays.
        floors.append(ordered.masked_fill(dropped, torch.inf).amin(1, keepdim=True))
    if sampling.min_p > 0:
        floors.append(logits.amax(1, keepdim=True) + math.log(sampling.min_p))
    for floor in floors:
        logits = logits.masked_fill(logits < floor, -torch.inf)
    return logits
