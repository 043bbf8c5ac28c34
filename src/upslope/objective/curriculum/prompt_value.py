"""Which tasks next? Those that a value of their prompts puts near to one half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upslope.objective.base import Curriculum
from upslope.types import Offer, Order, take_nearest


@dataclass(frozen=True)
class ByPromptValue(Curriculum):
    r"""The prompts whose predicted success is nearest to the target: the smallest :math:`|V(x) - p^*|` (PCL).

    V is read at the end of each prompt in one pass, before anything is sampled. Unlike a memory it also knows of prompts that were
    never asked.

    Fields:
        head: the model that predicts it (`PromptValue`), by its name in the method.
        candidates: prompts looked at for each one taken. More chooses harder and costs a forward pass over more prompts.
        target: the success looked for. :math:`p(1 - p)`, which the size of the gradient goes with, is largest at 1/2.
    """

    text_only: ClassVar[bool] = True
    ranges: ClassVar = {"candidates": "[1, inf)", "target": "[0, 1]"}

    head: str = "prompt_value"
    candidates: int = 4
    target: float = 0.5

    def __call__(self, offer: Offer) -> Order:
        value = offer.value(self.head).double().sigmoid()
        return take_nearest(offer, (value - self.target).abs(), {"value": value})
