"""Rows of pairs that are read together: both answers of a contest in one row, once in each order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from upslope.objective.base import RolloutPlan
from upslope.policies.reward_model import check_room
from upslope.policies.written_rows import two_answer_rows
from upslope.rollout.given import given
from upslope.rollout.pairs import CHOSEN, FINISH, REJECTED, contests
from upslope.rollout.text import TextRollout
from upslope.types import Assignment, Trajectories


@dataclass(frozen=True)
class FromBothOrders(RolloutPlan):
    """A contest for each chosen answer beside each rejected one, of two rows: the chosen answer first, which wins, and last.

    A row is the prompt and both answers, a stop token behind each; the last is its only decision. ``label["side"]`` is 1 where the
    chosen answer stands first and -1 where it stands last, ``label["order"]`` 0 and 1. Nobody sampled these rows, and they earn no
    reward.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"group", "label.side", "label.order"})
    samples: ClassVar[bool] = False
    needs_of_task: ClassVar[frozenset[str]] = frozenset({"pairs"})

    def build(self, task: Any, policy: Any, **sizes: Any) -> BothOrdersRollout:
        return BothOrdersRollout(task, policy, **sizes)


class BothOrdersRollout(TextRollout):
    """Both orders of the pairs of drawn problems in place of sampled answers."""

    provides = FromBothOrders.provides

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """Two rows for each pair of its problems."""
        sides = contests(self.task, self.problems_of(assignment))
        pairs = [
            (one, other)
            for _, group in itertools.groupby(sides, key=lambda each: each.group)
            for one, other in itertools.product(*_won_and_lost(list(group)))
        ]
        orders = [order for one, other in pairs for order in ((one, other), (other, one))]
        texts = [(first.text, second.text) for first, second in orders]
        rows = two_answer_rows(self.policy, [first.prompt for first, _ in orders], texts)
        check_room(self.policy, rows)
        rows, order = given(rows, assignment.first_group), torch.arange(len(orders), device=rows.sampled.device) % 2
        return rows.replace(
            group=torch.arange(len(orders), device=order.device) // 2 + assignment.first_group,
            task=torch.tensor([first.problem.id for first, _ in orders], dtype=torch.int64, device=order.device),
            label={**rows.label, "side": torch.where(order == 0, CHOSEN, REJECTED), "order": order},
            info=[
                {"prompt": first.problem.prompt, "answer": first.problem.answer, "response": f"{first.text}\n\n{second.text}",
                 "finish": f"{FINISH[first.side]} first"}
                for first, second in orders
            ],
        )  # fmt: skip


def _won_and_lost(group: list[Any]) -> tuple[list[Any], list[Any]]:
    return [each for each in group if each.side == CHOSEN], [each for each in group if each.side == REJECTED]
