"""Rewards that a model has learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from upslope.errors import MethodError
from upslope.objective.base import Reward
from upslope.objective.critics.targets import networks
from upslope.objective.models.success import RECORDED
from upslope.types import Batch


@dataclass(frozen=True)
class LearnedSuccess(Reward):
    r"""One where a classifier says that the task is done, else zero, in place of recorded rewards (SERL).

    .. math::  r = 1[\sigma(x(s')) > p]

    Fields:
        classifier: the model that says so.
        threshold: p, how sure it must be. A higher one is fooled less.
        ends: nothing comes behind a task that is done: values are not carried past it.
    """

    ranges: ClassVar = {"threshold": "(0, 1)"}

    classifier: str = "success"
    threshold: float = 0.5
    ends: bool = True

    def __call__(self, batch: Batch) -> Batch:
        if batch.nets is None or batch.step_reward is None:
            raise MethodError("LearnedSuccess takes the place of rewards in stored experience, and these rows are none.")
        logit = networks(batch).value(self.classifier, "next")[0, ..., 0].detach()
        done = (logit > math.log(self.threshold / (1 - self.threshold))).to(batch.step_reward.dtype)
        signal = {**batch.signal, RECORDED: batch.step_reward}
        if self.ends:
            signal["discount"] = batch.signal["discount"] * (1 - done)
        return batch.replace(step_reward=done, signal=signal)
