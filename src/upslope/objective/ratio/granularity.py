"""How far has the policy moved, and at which granularity?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Branch, Mix, Ratio
from upslope.types import Batch, Scope

LOG_LIMIT = 20.0
"""Log-ratios are clamped to ±20 before the exponential; e^20 is far outside any trust region and still finite."""


Against = Literal["proximal", "behavior"]
"""Divided by whom: the policy before the step's first update, or the one that really sampled."""


def raw_log_ratio(batch: Batch, against: Against = "proximal") -> Tensor:
    """log pi_current - log pi_other, unclamped, zero where nothing was sampled."""
    other = batch.proximal if against == "proximal" else batch.behavior
    if batch.current is None or other is None:
        raise MethodError("a ratio needs the current and the proximal log-probabilities; this batch has not been evaluated.")
    on = batch.sampled > 0
    if against == "behavior" and bool((other.logp.isnan() & on).any()):
        raise MethodError("a ratio against the behaviour policy divides by what nobody sampled: these rows are demonstrations.")
    return torch.where(on, batch.current.logp - other.logp.detach(), 0.0)


def log_ratio(batch: Batch, against: Against = "proximal") -> Tensor:
    """The log-ratio as every part uses it: NaN counts as not moved, the rest is clamped. Both lose their gradient there."""
    raw = raw_log_ratio(batch, against)
    return torch.where(raw.isnan(), 0.0, raw).clamp(-LOG_LIMIT, LOG_LIMIT)


def carrier(batch: Batch) -> Tensor:
    """Zero everywhere, with the gradient of log pi: ``exp(carrier)`` is one and differentiates like a ratio."""
    assert batch.current is not None
    logp = batch.current.logp
    return torch.where(logp.isfinite() & (batch.sampled > 0), logp - logp.detach(), 0.0)


def recorded(against: Against) -> frozenset[str]:
    """What a ratio needs that divides by whoever really sampled; the proximal policy is there anyway."""
    return frozenset({"behavior.logp"}) if against == "behavior" else frozenset()


@dataclass(frozen=True)
class NoRatio(Ratio):
    """The data count as the current policy's own; nothing is divided."""

    def branches(self) -> tuple[str, ...]:
        return ()

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        return ()


@dataclass(frozen=True)
class TokenRatio(Ratio):
    r"""Each decision by itself: :math:`r_t = \exp(\log\pi_\theta - \log\pi_{old})`.

    Fields:
        against: whose log-probabilities are subtracted: ``"proximal"``, or ``"behavior"`` where rows are older than the step.
    """

    against: Against = "proximal"

    def branches(self) -> tuple[str, ...]:
        return ("token",)

    def needs(self) -> frozenset[str]:
        return recorded(self.against)

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        log = log_ratio(batch, self.against)
        return (Branch("token", log, log.exp()),)


@dataclass(frozen=True)
class SequenceRatio(Ratio):
    r"""One length-normalised ratio per row: :math:`s_i = \exp(\frac{1}{T_i}\sum_t d_{i,t})` (GSPO).

    Fields:
        gradient: ``"token"`` writes :math:`sg[s_i]\,\pi_\theta/sg[\pi_\theta]` on each token, so that advantages and mixing
            weights may differ by token; ``"sequence"`` differentiates :math:`s_i` itself. With one advantage per row and a
            mean over tokens the two have the same value and gradient.
    """

    scope = "sequence"

    gradient: Literal["token", "sequence"] = "token"

    def branches(self) -> tuple[str, ...]:
        return ("sequence",)

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        mean = batch.row_mean(log_ratio(batch))
        log = batch.per_decision(mean.detach()) + carrier(batch) if self.gradient == "token" else batch.per_decision(mean)
        return (Branch("sequence", log, log.exp()),)


@dataclass(frozen=True)
class ConstantMix(Mix):
    """The same share everywhere. 1 is the token branch alone (GRPO), 0 the sequence branch alone (GSPO)."""

    ranges: ClassVar = {"share": "[0, 1]"}

    share: float = 0.5

    def __call__(self, batch: Batch) -> float:
        return self.share


@dataclass(frozen=True)
class EntropyMix(Mix):
    r"""Uncertain tokens use their own ratio, confident ones follow the sequence: the entropy, min-max normalised.

    .. math::  w_{i,t} = sg\left[\frac{H_{i,t} - \min H}{\max H - \min H}\right]

    Fields:
        over: the set whose minimum and maximum are taken. The paper does not say; ours is the response.
        direction: +1 as above (our reading); -1 gives the confident tokens their own ratio.
        source: the policy whose entropy it is: ``"proximal"`` (fixed for the step) or ``"current"``.
        neutral: the share where all entropies of the set are equal.
    """

    ranges: ClassVar = {"neutral": "[0, 1]"}

    over: Literal["response", "group", "batch"] = "response"
    direction: int = 1
    source: Literal["proximal", "current"] = "proximal"
    neutral: float = 0.5

    def __post_init__(self) -> None:
        if self.direction not in (1, -1):
            raise MethodError(f"EntropyMix.direction is {self.direction}; it is 1 or -1.")
        if self.over == "batch" and self.source == "current":
            raise MethodError("EntropyMix over the batch cannot use the current entropy: no slice holds the whole update. "
                              "Take source='proximal', or over='response' or 'group'.")  # fmt: skip

    def needs(self) -> frozenset[str]:
        return frozenset({f"{self.source}.entropy"})

    def seen_at_once(self) -> Scope:
        if self.over == "response":
            return "sequence"
        return "group" if self.source == "current" else "decision"  # the call then reads what was prepared

    def prepares(self) -> bool:
        return self.over != "response" and self.source == "proximal"

    def prepare(self, batch: Batch) -> Tensor:
        return self._share(batch)

    def __call__(self, batch: Batch) -> Tensor:
        return batch.prepared[self] if self in batch.prepared else self._share(batch)

    def _share(self, batch: Batch) -> Tensor:
        view = batch.current if self.source == "current" else batch.proximal
        if view is None or view.entropy is None:
            raise MethodError(f"EntropyMix needs the entropy of the {self.source} policy, and this batch has none.")
        entropy = view.entropy.detach()
        on = batch.sampled > 0
        low = self._extreme(batch, torch.where(on, entropy, torch.inf), "amin")
        high = self._extreme(batch, torch.where(on, entropy, -torch.inf), "amax")
        spread = high - low
        flat = ~(spread >= 1e-8)  # also where nothing was sampled: inf - inf
        share = torch.where(flat, self.neutral, (entropy - low) / torch.where(flat, 1.0, spread))
        return torch.where(on, share if self.direction == 1 else torch.where(flat, share, 1 - share), self.neutral)

    def _extreme(self, batch: Batch, entropy: Tensor, reduce: str) -> Tensor:
        """Smallest or largest entropy of each decision's set, ``[N, 1]``."""
        per_row = getattr(entropy, reduce)(dim=1)
        if self.over == "response":
            return per_row.unsqueeze(1)
        if self.over == "batch":
            return getattr(per_row, reduce)(dim=0).expand(batch.rows).unsqueeze(1)
        index, groups = batch.group_index()
        start = torch.full((groups,), torch.inf if reduce == "amin" else -torch.inf, dtype=per_row.dtype, device=per_row.device)
        return start.scatter_reduce_(0, index, per_row, reduce)[index].unsqueeze(1)


@dataclass(frozen=True)
class Hybrid(Ratio):
    r"""A token and a sequence branch side by side, mixed late: :math:`u = w\,r + (1-w)\,s` (DHPO).

    The surrogate bounds each branch in its own trust region before they are mixed, so that an outlier in one cannot swallow
    the other.
    """

    token: Ratio = TokenRatio()
    sequence: Ratio = SequenceRatio()
    mix: Mix = ConstantMix()

    def branches(self) -> tuple[str, ...]:
        return (*self.token.branches(), *self.sequence.branches())

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        share = self.mix(batch)
        (token,), (sequence,) = self.token(batch), self.sequence(batch)
        return (token._replace(weight=share), sequence._replace(weight=1.0 - share))
