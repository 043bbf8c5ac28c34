"""What each slot takes and gives. A slot's parts stand in the file of its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from upslope.types import Batch, Metrics, Part

Notes = dict[str, Tensor]
"""Columns ``[N, T]`` a part leaves for metrics and for people, such as ``clipped``."""
State = dict[str, Any]
"""Tensors, numbers and text: what goes into a checkpoint."""


class Remembers:
    """A part with memory: it reads ``batch.state[self]`` in its call and writes only in ``update``, once at the end of a step.

    Rows that a filter dropped are in the batch of ``update`` too. No pass, slice or process can count twice.
    """

    def init(self) -> State:
        raise NotImplementedError

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        raise NotImplementedError


class Reward(Part):
    """Changes the reward after the task gave it: takes a batch, gives the batch with ``reward`` or ``step_reward`` changed."""

    scope = "step"

    def __call__(self, batch: Batch) -> Batch:
        raise NotImplementedError


class Filter(Part):
    """Says which rows enter the update, as booleans ``[N]``. A dropped row is in no mean and no denominator.

    One that is ``late`` runs after the advantage and reads it: what it drops did count in the group's statistics.
    """

    scope = "step"
    late: ClassVar[bool] = False
    refill: bool
    """Sample other tasks in place of what was dropped."""
    rounds: int
    """The most times a step samples; what is there then has to do."""

    def __call__(self, batch: Batch) -> Tensor:
        raise NotImplementedError


class Advantage(Part):
    """How much better than expected each decision was, ``[N, T]``."""

    scope = "step"

    def __call__(self, batch: Batch) -> Tensor:
        raise NotImplementedError

    def signals(self, batch: Batch, advantage: Tensor) -> Mapping[str, Tensor]:
        """Further columns that other parts read, such as the ``returns`` a value function learns."""
        return {}


class Shape(Part):
    """Rescales ``batch.advantage``, giving a new one. Scope ``step`` runs once, ``update`` at the start of each update."""

    def __call__(self, batch: Batch) -> Tensor:
        raise NotImplementedError


class Branch(NamedTuple):
    """One reading of how far the policy has moved."""

    name: str
    log: Tensor
    """Log-ratio ``[N, T]``, clamped."""
    value: Tensor
    """The ratio itself, with the gradient it should carry."""
    weight: Tensor | float = 1.0
    """Its share where branches are mixed; never carries gradient. The weights of a ratio's branches sum to one."""


class Ratio(Part):
    """How far the current policy has moved, as branches that a surrogate bounds one by one and mixes late."""

    def branches(self) -> tuple[str, ...]:
        """Names of the branches it gives."""
        raise NotImplementedError

    def __call__(self, batch: Batch) -> tuple[Branch, ...]:
        raise NotImplementedError


class Mix(Part):
    """The token branch's share in a mix of two branches, ``[N, T]`` in [0, 1] or a number; never carries gradient.

    One that must see the whole update computes it in `prepare`.
    """

    def __call__(self, batch: Batch) -> Tensor | float:
        raise NotImplementedError


class Surrogate(Part):
    """The trust region: a loss per decision ``[N, T]`` (minimised) and notes."""

    silent_without_advantage = True
    """A decision with advantage zero has no gradient, so its row need not be computed."""

    def takes(self, branches: tuple[str, ...]) -> bool:
        """Whether it can bound these branches."""
        return len(branches) == 1

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        raise NotImplementedError


class Weight(Part):
    """Which decisions matter: a detached factor ``[N, T]`` on the surrogate."""

    def counts_dropped(self) -> bool:
        """Whether a decision of weight zero still counts in the aggregate's denominators."""
        return True

    def __call__(self, batch: Batch) -> Tensor:
        raise NotImplementedError


class Aggregate(Part):
    """How decisions are averaged: weights ``[N, T]`` for the whole update, so that the loss of any slice is a plain sum."""

    scope = "update"

    def __call__(self, batch: Batch) -> Tensor:
        raise NotImplementedError


class Regularizer(Part):
    """A further loss per decision ``[N, T]``, aggregated as the surrogate is."""

    aggregated: ClassVar[bool] = True
    """False: the term is a share of a sum already (a loss per group spread over its decisions) and is added as it is."""

    def __call__(self, batch: Batch) -> Tensor:
        raise NotImplementedError


class Controller(Part, Remembers):
    """Moves knobs during the run, on a signal it remembers, and may end a step's passes early."""

    scope = "step"

    def init(self) -> State:
        return {}

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        return state

    def knobs(self, state: State, progress: float) -> dict[str, float]:
        """Knobs by path to set for the coming step; ``progress`` is the share of the run's steps that are done."""
        return {}

    def ends_passes(self, metrics: Metrics) -> bool:
        """Whether the update just made should be the step's last."""
        return False
