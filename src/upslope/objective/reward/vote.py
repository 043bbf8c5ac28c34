"""The most common answer of a group in place of a label nobody has (TTRL)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.objective.base import Reward
from upslope.types import NO_ANSWER, Batch, Metrics


@dataclass(frozen=True)
class MajorityVote(Reward):
    r"""Pays 1 for the answer that most of the group gave and 0 for any other, whatever the task says (TTRL).

    .. math::  R_i = 1[a_i = \arg\max_a \sum_j 1[a_j = a]]

    Answers are the same where the task says so. Rows without an answer have no vote. Of answers with as many votes, chance decides.
    What the task itself pays stays the component ``task``, and the metric ``label_accuracy`` says how often the vote was right by
    it. What counts as right from here on is the component ``verdict``.
    """

    def needs(self) -> frozenset[str]:
        return frozenset({"group", "label.answer", "key"})

    def __call__(self, batch: Batch) -> Batch:
        vote = self.vote(batch).to(batch.reward.dtype)
        # Other rewards may stand before it: only the task's share is replaced.
        return batch.replace(reward=batch.reward - batch.verdict() + vote, components={**batch.components, "verdict": vote})

    def vote(self, batch: Batch) -> Tensor:
        """Whether each row gave the answer of its group ``[N]``."""
        if "answer" not in batch.label:
            raise MethodError("MajorityVote needs to know which answers are the same, and this batch has no label 'answer'.")
        index, groups = batch.group_index()
        classes, which, counts = torch.unique(
            torch.stack([index, batch.label["answer"]], 1), dim=0, return_inverse=True, return_counts=True
        )
        chance = batch.uniform(self)[:, 0] if batch.key is not None else torch.arange(batch.rows, device=index.device) / batch.rows
        first = torch.ones(len(classes), dtype=torch.float64, device=index.device)
        first = first.scatter_reduce_(0, which, chance.to(torch.float64), "amin")
        votes = torch.where(classes[:, 1] == NO_ANSWER, -1.0, counts - first)
        best = torch.full((groups,), 0.0, dtype=torch.float64, device=index.device)
        best = best.scatter_reduce_(0, classes[:, 0], votes.to(torch.float64), "amax")
        return ((votes == best[classes[:, 0]]) & (votes > 0))[which]

    def metrics(self, rows: Batch) -> Metrics:
        agrees, paid = rows.components["verdict"], rows.components.get("task", rows.reward)
        index, groups = rows.group_index()

        def total(column: Tensor) -> Tensor:
            return torch.zeros(groups, device=column.device).index_add_(0, index, column.float())

        answers = torch.unique(torch.stack([index, rows.label["answer"]], 1), dim=0)
        right = total(paid * agrees) / total(agrees).clamp_min(1)
        return {"label_accuracy": float(right.mean()), "distinct_answers": len(answers) / max(groups, 1)}
