"""What each slot takes and gives. A slot's parts stand in the file of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from upslope.types import Batch, Head, Metrics, Part, Trajectories, View

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


class Memory(Part, Remembers):
    """What several parts share, under a name in the method's ``memory``: one state, read by all, written once a step."""

    scope = "step"

    def recall(self, state: State, tasks: Tensor) -> Tensor:
        """What is known of these tasks ``[M]``; a task never seen gets what the memory starts with."""
        raise NotImplementedError


class Curriculum(Part):
    """Which tasks next: a weight for each candidate task ``[M]``, of which a step's tasks are drawn without replacement."""

    scope = "step"
    candidates: int
    """Candidates drawn for each task of a step; 1 leaves nothing to choose."""

    def __call__(self, tasks: Tensor, recall: Callable[[str], Tensor]) -> Tensor:
        """Weights ``[M]``; ``recall(name)`` is what a memory says of the candidates."""
        raise NotImplementedError


class RolloutPlan(Part):
    """How answers are sampled, where not plainly in groups: it builds the rollout of a text task."""

    scope = "step"
    provides: ClassVar[frozenset[str]]
    """Columns its rows have beyond the basic ones."""

    def build(self, task: Any, policy: Any, *, tasks: int, samples: int, sampling: Any, seed: int, engine: Any = None) -> Any:
        """The rollout (`upslope.learners.policy_gradient.Rollout`); without an engine it takes the torch engine."""
        raise NotImplementedError


class Outside(Protocol):
    """What the learner does for a `Data` part."""

    def look(self, rows: Trajectories, columns: frozenset[str]) -> View:
        """The policy's columns on any rows, before the step's first update, without gradient."""

    def teacher(self, rows: Trajectories) -> Trajectories:
        """A reference answer to the task of each group, scored, with the group's number and nobody's log-probabilities."""

    def join(self, batches: list[Trajectories]) -> Trajectories:
        """Several batches as one."""


class Data(Part):
    """What else enters the step: the rows with others joined to them, with columns measured, or with rows put ``aside`` for a term.

    It runs when the rewards are known and before any filter. One that remembers is updated with the rows the step learned from,
    annotated.
    """

    scope = "step"

    def __call__(self, rows: Trajectories, outside: Outside) -> Trajectories:
        raise NotImplementedError


class Reference(Part):
    """With whom the policy is compared: the policy as it was, or itself on other inputs. ``start`` needs no part."""

    scope = "step"

    def sees(self, rows: Trajectories) -> Trajectories:
        """The rows as this reference sees them."""
        return rows


class Through(Part):
    """How a language model is looked at when it learns: what stands in a method's ``policy``. Sampling does not know it."""

    def noted(self, policy: Any, rows: Trajectories) -> Trajectories:
        """The rows with what must be known of the policy as it is before the step's first update."""
        return rows

    def inside(self, model: Any, experts: Tensor | None = None) -> Any:
        """A context: while it lasts, ``model`` gives the logits to learn from; ``experts`` are those noted for its tokens."""
        raise NotImplementedError


class Probe(Part):
    """Something a policy computes for each decision inside its forward pass; the column has the probe's ``name``.

    The objective never sees a vocabulary: what takes logits, hidden states or the head is in here, on a chunk of decisions.
    """

    name: ClassVar[str]

    def __call__(self, seen: Seen) -> Tensor:
        """The column ``[M]`` of the chunk's decisions."""
        raise NotImplementedError


class Seen(NamedTuple):
    """A chunk of ``M`` decisions inside a language model's forward pass."""

    logits: Tensor
    """``[M, V]`` float32, at the recorded temperature."""
    hidden: Tensor
    """``[M, D]``: what the head turned into logits."""
    action: Tensor
    """``[M]`` ids."""
    advantage: Tensor
    """``[M]``, zero where there is none yet."""


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
    silent_on_equal_rewards: ClassVar[bool] = True
    """A group whose rewards are all equal says nothing; false where one learns from its being all wrong."""

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


class Model(Regularizer):
    """Something learned beside the policy: an output on its trunk, and the loss that fits it. The column has the model's name."""

    lr_scale: float
    """Its learning rate as a multiple of the policy's."""

    def head(self) -> Head:
        return Head()


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

    def snapshots(self, state: State, progress: float) -> tuple[str, ...]:
        """References that become the policy as it is now, before the coming step."""
        return ()

    def ends_passes(self, metrics: Metrics) -> bool:
        """Whether the update just made should be the step's last."""
        return False


SLOT_CLASSES: Mapping[str, type[Part]] = {
    "curriculum": Curriculum, "rollout": RolloutPlan, "reward": Reward, "data": Data, "filter": Filter, "advantage": Advantage,
    "shape": Shape, "policy": Through, "ratio": Ratio, "surrogate": Surrogate, "weight": Weight, "aggregate": Aggregate,
    "regularize": Regularizer, "models": Model, "references": Reference, "memory": Memory, "controller": Controller,
}  # fmt: skip
"""What each slot's parts derive from."""
