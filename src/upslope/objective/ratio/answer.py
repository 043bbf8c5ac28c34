"""How much likelier a whole answer has become."""

from __future__ import annotations

from dataclasses import dataclass

from upslope.objective.base import Branch, Ratio
from upslope.objective.ratio.granularity import LOG_LIMIT, Against, carrier, log_ratio, recorded
from upslope.types import Batch


@dataclass(frozen=True)
class AnswerRatio(Ratio):
    r"""One importance weight per answer, the product over its tokens: :math:`\rho_i = \exp\sum_t (\log\pi_\theta - \log q)_{i,t}`.

    It has no bias and, on long answers, a large variance; `SequenceRatio` takes the mean over tokens instead. Its value carries no
    gradient of its own: each token's is :math:`\rho_i\,\nabla\log\pi_\theta`.

    Fields:
        against: by whom: ``"behavior"``, who really sampled, or ``"proximal"``, the policy before the step's first update.
    """

    scope = "sequence"

    against: Against = "behavior"

    def branches(self) -> tuple[str, ...]:
        return ("sequence",)

    def needs(self) -> frozenset[str]:
        return recorded(self.against)

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        whole = log_ratio(batch, self.against).sum(1).clamp(-LOG_LIMIT, LOG_LIMIT)
        log = batch.per_decision(whole.detach()) + carrier(batch)
        return (Branch("sequence", log, log.exp()),)
