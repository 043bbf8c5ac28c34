"""Sampling: how tokens are drawn, and the completions an engine returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from upslope.errors import UserError

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


def samples_each(n: int | Sequence[int], prompts: int) -> list[int]:
    """Completions of each of so many prompts: the same number of all, or one for each.

    Raises:
        UserError: if there is nothing to complete, or the numbers do not fit the prompts.
    """
    each = [n] * prompts if isinstance(n, int) else [int(own) for own in n]
    if not prompts or (isinstance(n, int) and n < 1):
        raise UserError(f"nothing to generate: {prompts} prompts, n={n}. Give at least one of each.")
    if len(each) != prompts or min(each) < 1:
        least = min(each, default=0)
        raise UserError(f"{len(each)} numbers of completions, the smallest {least}, for {prompts} prompts: each needs one above 0.")
    return each


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
    kept: Tensor | None = None
    """``[R]``: what the pass that sampled the rows calls them, where it was kept to learn from (`ActivationCache`)."""
    approximate: bool = False
    """Whether the policy drew them in another precision than it learns in."""
