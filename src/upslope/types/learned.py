"""What learns beside the policy with a network and an optimiser of its own, and who acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from upslope.packed import Piece
from upslope.types.batch import Batch
from upslope.types.part import Metrics, Part
from upslope.types.slots import Data, ModelPart, Notes

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ActionSpace:
    """What networks must know of a task."""

    observation: tuple[int, ...]
    """Shape of an observation."""
    actions: int
    """Choices, or dimensions."""
    discrete: bool
    channel_axis: int | None = None
    """Of an image: which axis of it are channels; vectors have none."""
    pieces: tuple[Piece, ...] = ()
    """Of images and numbers packed into bytes: what is where."""

    @property
    def has_images(self) -> bool:
        return self.channel_axis is not None or bool(self.pieces)


class ModelNetwork(Part):
    """The network of a learned model: it builds a module that answers `Networks.value`."""

    def build(self, space: ActionSpace, takes_action: bool, seed: int) -> nn.Module:
        """An untrained module, its weights drawn from the seed.

        Args:
            takes_action: the model judges actions: they are an input, or, where they are choices, there is an output for each.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Learned(ModelPart):
    """A model with a network and an optimiser of its own. It has a `loss` that is descended.

    Fields:
        lr_scale: its learning rate as a multiple of the run's.
        every: updates between two of its own; 1 learns in each.
        order: when in an update: below zero before the policy, the lowest first; above zero after it.
        lag: how far its slowly following copy moves towards it each time: 1 copies it whole, 0 keeps no copy.
        lag_every: updates between two moves of that copy.
    """

    ranges: ClassVar = {"lr_scale": "[0, inf)", "every": "[1, inf)", "lag": "[0, 1]", "lag_every": "[1, inf)"}
    scope = "decision"
    takes_action: ClassVar[bool] = False

    lr_scale: float = 1.0
    every: int = 1
    order: int = -1
    lag: float = 0.0
    lag_every: int = 1

    def model_network(self) -> ModelNetwork:
        """The network it learns."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> tuple[Tensor, Notes]:
        """Loss of each decision ``[N, T]``, and columns for metrics; gradients reach this model only."""
        raise NotImplementedError


Nearest = Callable[[Tensor], Tensor]
"""The number of the point nearest to each of those asked for: ``[N, K] -> [N]``."""


@dataclass(frozen=True, eq=False)
class World:
    """What a solved model looks at: every recorded decision of the dataset, as networks see it."""

    observation: Tensor
    """``[M, ...]``."""
    action: Tensor
    """``[M, A]`` in [-1, 1] where the space is bounded, or ids ``[M]``."""
    search: Callable[[Tensor], Nearest]
    """Prepares points ``[M, K]`` for questions about which of them is nearest."""


@dataclass(frozen=True)
class Solved(ModelPart):
    """A model that is computed from all that is recorded, where a `Learned` one descends a loss: neighbours, tables.

    What it finds is kept in its network, which parts ask through `Networks.column`. Where that has no weights, a checkpoint does
    not hold it, and it is solved once more when a run goes on.
    """

    needs_dataset: ClassVar[bool] = True
    takes_action: ClassVar[bool] = False
    lag: ClassVar[float] = 0.0
    lag_every: ClassVar[int] = 1

    def model_network(self) -> ModelNetwork:
        """What keeps and answers what was found."""
        raise NotImplementedError

    def due(self, step: int) -> bool:
        """Whether it is solved before this step; the first is 1."""
        return step == 1

    def solve(self, network: nn.Module, world: World) -> Metrics:
        """Looks at everything and leaves what it finds in its network; numbers for the log."""
        raise NotImplementedError


class DrawnData(Data):
    """How rows are drawn from stored experience: what the actor-critic learner asks a method's ``data``."""

    needs_dataset: ClassVar[bool] = False
    """Whether it makes no sense without a dataset."""
    gamma: float
    """The discount."""
    n_steps: int
    """Steps of a row: their rewards are discounted and summed, and what is behind them is valued."""
    capacity: int
    """Decisions of the run that are remembered; the oldest are forgotten."""
    together: int = 1
    """Updates in a row that have the same ``chance``."""
    augment: Any = None
    """How drawn images are changed: an `Augmentation`, whose ``for_images`` says whether there must be any."""

    def counts(self, rows: int, stored: dict[str, int], chance: float) -> dict[str, int]:
        """Of an update's ``rows``, how many are drawn from each store; ``stored`` is what they hold (``replayed``,
        ``demonstrated``), ``chance`` a uniform number of this update, or of those that it stands ``together`` with."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class ActingContext:
    """What a part of ``acting`` may look at when it changes the actions of a tick."""

    observation: np.ndarray
    """``[B, ...]``, as the policy sees it."""
    env_steps: int
    """Steps of all environments before this one."""
    planned_steps: int
    """Those that the whole run will make."""
    random: np.random.Generator
    """Of this tick and this part."""
    discrete: bool
    action_size: int
    action_mask: np.ndarray | None = None
    """``[B, action_size]`` booleans: the choices that are allowed; none where all are."""

    def uniform_choices(self) -> np.ndarray:
        """A choice for each observation ``[B]``, drawn uniformly among those that are allowed."""
        rows, mask = len(self.observation), self.action_mask
        if mask is None:
            return self.random.integers(0, self.action_size, rows)
        wanted = (self.random.random(rows) * mask.sum(-1)).astype(np.int64)  # which of the allowed ones, counted from 0
        return (mask.cumsum(-1) <= wanted[:, None]).sum(-1)


class Acting(Part):
    """Who acts while experience is gathered: it takes the policy's actions of a tick and gives those that are taken."""

    scope = "step"

    def __call__(self, action: np.ndarray, context: ActingContext) -> np.ndarray:
        """Actions ``[B]`` or ``[B, A]`` in [-1, 1]. Choices must be among those that ``context.action_mask`` allows."""
        raise NotImplementedError

    def warm_up(self) -> int:
        """Steps of the environments before the first update."""
        return 0
