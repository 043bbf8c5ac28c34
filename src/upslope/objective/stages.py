"""A stage before a method: the same estimator, with parts of its own, for a share of the run's steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upslope.errors import MethodError
from upslope.objective.base import Advantage, Aggregate, Ratio, RolloutPlan, Surrogate, TrainingStage, Weight
from upslope.types import SLOTS, Method

HELD = ("rollout", "advantage", "ratio", "surrogate", "aggregate", "weight")
"""What a stage has of a method."""


@dataclass(frozen=True)
class Stage(TrainingStage):
    """Training before the method itself: pretraining on documents, supervised fine-tuning, another loss to begin with.

    Stages run one after another in the order in which they stand, then the method, all in one run: their steps, tokens and seconds
    count in it, and its evaluations, checkpoints and sizes are theirs too. The learning rate follows the schedule of the whole run.
    The method begins with states of its own, and the reference ``start`` is the policy that the last stage leaves behind.

    Fields:
        name: how ``--set stages.NAME.share`` and compositions call it.
        share: of the run's steps. All stages together take less than 1; the method has the rest.
        rollout: where the rows of the stage come from.
        weight: which decisions matter, as in a method's own slot.
        lr_scale: what the learning rate is multiplied with.
        fresh_optimizer: what follows the stage begins with an optimiser without moments, as after a restart.
    """

    ranges: ClassVar = {"share": "(0, 1)", "lr_scale": "[0, inf)"}

    name: str
    share: float
    rollout: RolloutPlan
    advantage: Advantage
    ratio: Ratio
    surrogate: Surrogate
    aggregate: Aggregate
    weight: tuple[Weight, ...] = ()
    lr_scale: float = 1.0
    fresh_optimizer: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.name, str) and not self.name.replace("-", "_").isidentifier():
            raise MethodError(f"a stage is named {self.name!r}; its name is a word of letters, digits and '-', as in 'cpt'.")

    @classmethod
    def of_method(cls, method: Method, share: float) -> Stage:
        """A whole method as a stage; refused if it has what no stage holds."""
        empty = method.without("stages", *HELD)
        if beyond := [slot for slot in SLOTS if getattr(empty, slot)]:
            raise MethodError(f"{method.name} cannot come before another method: a stage holds {', '.join(HELD)}, and this has "
                              f"its own {beyond[0]}. Train it first, and give its run as --model.")  # fmt: skip
        return cls(name=method.name, share=share, **{slot: getattr(method, slot) for slot in HELD})

    def as_method(self, of: Method) -> Method:
        parts = {slot: getattr(self, slot) for slot in HELD}
        return Method(name=f"{of.name}.{self.name}", paper=of.paper, family=of.family, **parts)
