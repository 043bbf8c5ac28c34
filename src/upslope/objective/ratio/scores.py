"""What a head says of an answer, where other methods measure how likely it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from upslope.objective.base import Branch, Ratio
from upslope.objective.functional.last_decision import last_decision
from upslope.objective.models.score import last_output
from upslope.objective.ratio.granularity import LOG_LIMIT
from upslope.types import Batch


@dataclass(frozen=True)
class HeadScore(Ratio):
    """The output of a head at the last decision of a row, zero before it: summed over an answer it is the answer's score.

    Losses of preferences compare it as they compare log-likelihoods.

    Fields:
        model: name of the head, among the method's models.
    """

    model: str = "score"

    def branches(self) -> tuple[str, ...]:
        return ("score",)

    def needs(self) -> frozenset[str]:
        return frozenset({f"current.{self.model}"})

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        score = last_output(batch, self.model)
        log = torch.where(last_decision(batch.sampled), score.unsqueeze(1), 0.0)
        return (Branch("score", log, log.clamp(-LOG_LIMIT, LOG_LIMIT).exp()),)
