"""How far the policy is from others, rather than from where the step began."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from upslope.errors import MethodError
from upslope.objective.base import Branch, Ratio
from upslope.objective.ratio.granularity import LOG_LIMIT
from upslope.types import Batch


@dataclass(frozen=True)
class AgainstReferences(Ratio):
    r"""Log-likelihoods beside those of references: :math:`\log\pi_\theta - \sum_r w_r \log\pi_r` for each decision.

    One reference of weight 1 is DPO's implicit reward without its :math:`\beta`, two are INPO's, none is the log-likelihood itself
    (SimPO). Nothing is clamped: losses of preferences take no exponential of a single token.

    Fields:
        references: whose log-probabilities are subtracted. Empty compares with nobody, and costs no forward pass.
        weights: what each is multiplied with; they need not sum to one.
    """

    references: tuple[str, ...] = ("start",)
    weights: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not (isinstance(self.references, tuple) and isinstance(self.weights, tuple)):
            raise MethodError(f"AgainstReferences({self.references!r}, {self.weights!r}): both are lists, a weight for each name.")
        if len(self.references) != len(self.weights):
            names = ", ".join(self.references) or "none"
            raise MethodError(f"AgainstReferences has the references {names} and {len(self.weights)} weights; give each one.")
        if len(set(self.references)) < len(self.references):
            raise MethodError(f"AgainstReferences.references names one twice: {', '.join(self.references)}. Add up their weights.")

    def branches(self) -> tuple[str, ...]:
        return ("reference",)

    def needs(self) -> frozenset[str]:
        return frozenset(f"reference.{name}.logp" for name in self.references)

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        if batch.current is None:
            raise MethodError("a ratio needs the current log-probabilities; this batch has not been evaluated.")
        log = batch.current.logp
        if missing := [name for name in self.references if name not in batch.reference]:
            found = ", ".join(batch.reference) or "no reference"
            raise MethodError(f"AgainstReferences compares with {missing[0]!r}; this batch has {found}.")
        for name, weight in zip(self.references, self.weights, strict=True):
            log = log - weight * batch.reference[name].logp.detach()
        log = torch.where(log.isfinite() & (batch.sampled > 0), log, 0.0)
        return (Branch("reference", log, log.clamp(-LOG_LIMIT, LOG_LIMIT).exp()),)
