"""How rows are drawn from stored experience."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from upslope.objective.base import DrawnData
from upslope.objective.data.augment import Augmentation, NoAugmentation

REPLAYED, DEMONSTRATED = "replayed", "demonstrated"
"""The run's own experience, and the dataset it was given."""


@dataclass(frozen=True)
class UniformReplay(DrawnData):
    """Every stored decision is as likely as any other, the dataset's and the run's own alike.

    Fields:
        gamma: the discount.
        n_steps: steps of a row. More carry rewards back faster and trust old actions more.
        capacity: decisions of the run that are remembered; the oldest are forgotten.
        augment: how drawn images are changed before networks look at them.
    """

    ranges: ClassVar = {"gamma": "[0, 1]", "n_steps": "[1, inf)", "capacity": "[1, inf)"}

    gamma: float = 0.99
    n_steps: int = 1
    capacity: int = 1_000_000
    augment: Augmentation = field(default_factory=NoAugmentation)

    def counts(self, rows: int, stored: dict[str, int], chance: float) -> dict[str, int]:
        total = sum(stored.values())
        exact = rows * stored.get(DEMONSTRATED, 0) / max(total, 1)
        # A share that is no whole number is met on average: the rest is drawn.
        demonstrated = min(int(exact) + (chance < exact - int(exact)), rows)
        return {REPLAYED: rows - demonstrated, DEMONSTRATED: demonstrated}


@dataclass(frozen=True)
class MixedReplay(UniformReplay):
    """A fixed share of every update comes from the dataset; all of it, as long as there is nothing else.

    Fields:
        demonstrated: that share.
    """

    ranges: ClassVar = {"demonstrated": "[0, 1]"}
    needs_dataset: ClassVar[bool] = True

    demonstrated: float = 0.5

    def counts(self, rows: int, stored: dict[str, int], chance: float) -> dict[str, int]:
        if not stored.get(DEMONSTRATED) or not stored.get(REPLAYED):
            return super().counts(rows, stored, chance)
        demonstrated = round(rows * self.demonstrated)
        return {REPLAYED: rows - demonstrated, DEMONSTRATED: demonstrated}


@dataclass(frozen=True)
class OneStore(UniformReplay):
    """All rows of an update come from one store, the dataset or the run's own, drawn anew for every few updates (MOORL).

    As long as one of them is empty, the other is taken.

    Fields:
        demonstrated: how likely the dataset is.
        together: updates in a row that draw from the same store.
    """

    ranges: ClassVar = {"demonstrated": "[0, 1]", "together": "[1, inf)"}
    needs_dataset: ClassVar[bool] = True

    demonstrated: float = 0.5
    together: int = 1

    def counts(self, rows: int, stored: dict[str, int], chance: float) -> dict[str, int]:
        if not stored.get(DEMONSTRATED) or not stored.get(REPLAYED):
            return super().counts(rows, stored, chance)
        demonstrated = rows if chance < self.demonstrated else 0
        return {REPLAYED: rows - demonstrated, DEMONSTRATED: demonstrated}
