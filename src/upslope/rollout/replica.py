"""What a worker is wherever it runs: a copy of the policy that takes weights by version, and the rollouts that sample with it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from upslope.errors import UserError
from upslope.rollout.under_way import packed
from upslope.runtime.messages import Message
from upslope.runtime.shared_weights import take_over
from upslope.types import Assignment


class Replica:
    """A copy of the policy with its rollouts.

    Args:
        rollouts: By stage; the one without is ``""``.
    """

    def __init__(self, policy: Any, rollouts: Mapping[str, Any]):
        self.policy, self.rollouts = policy, rollouts
        self.version, self.checksum = -1, 0

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Takes other weights, and proves it by the checksum of what it holds then."""
        self.version, self.checksum = version, take_over(self.policy.weights(), weights)
        for rollout in self.rollouts.values():
            rollout.sync()

    def answer(self, assignment: Assignment) -> Message:
        """What comes of an assignment, or how far its answers are where others may go on with them, and a proof of who wrote it."""
        rollout, proof = self.rollouts[assignment.stage], {"version": self.version, "checksum": self.checksum}
        if rollout.interrupt_every:
            assignment = rollout.extended(assignment)
            if any(answer["finish"] == "paused" for answer in assignment.begun):
                return Message("fulfilled", {"begun": list(assignment.begun), **proof})
        found = rollout.fulfilled(assignment)
        return Message("fulfilled", {"rows": packed(found.rows.to("cpu")), "told": found.told, **proof})


def failure(problem: BaseException) -> Message:
    """What went wrong, as a worker says it."""
    if isinstance(problem, UserError):
        return Message("refused", {"why": str(problem)})
    return Message("raised", {"why": "".join(traceback.format_exception(problem))})
