"""Slot classes: what the parts of each slot take and return.

A slot's own parts are in the package or module of its name below `upslope.objective`; those of ``policy`` in
`upslope.policies.views` and `upslope.policies.control.networks`, those of ``rollout`` in `upslope.rollout`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from upslope.plain_data import JsonDict, Prompt
from upslope.types.batch import Batch, Trajectories, View
from upslope.types.curriculum import Curriculum as Curriculum
from upslope.types.curriculum import KeptProblems
from upslope.types.part import Head, Metrics, Part

if TYPE_CHECKING:
    from upslope.types.interfaces import Policy, Rollout
    from upslope.types.method import Method

Notes = dict[str, Tensor]
"""Columns a part leaves for metrics and for people: booleans ``[N, T]`` such as ``clipped``, of which the share is told, or numbers
``[N, T]`` or ``[N]`` such as ``margin``, of which the mean is, NaN where there is none."""
State = JsonDict
"""Tensors, numbers and text: what goes into a checkpoint."""


class Stateful:
    """A part with state: it reads ``batch.state[self]`` in its call and writes only in ``update``, once at the end of a step.

    Rows that a filter dropped are in the batch of ``update`` too (a `Data` part gets those learned from). No pass, slice or process
    can count twice.
    """

    def init(self) -> State:
        raise NotImplementedError

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        raise NotImplementedError


class Memory(Part, Stateful):
    """What several parts share, under a name in the method's ``memory``: one state, read by all, written once a step."""

    scope = "step"
    by: ClassVar[Literal["task", "category"]] = "task"
    """What it is kept of: single tasks, or categories of them (``label["category"]``)."""

    def recall(self, state: State, tasks: Tensor) -> Tensor:
        """What is known of these tasks, or of these categories, ``[M]``; one never seen gets what the memory starts with."""
        raise NotImplementedError

    def problems(self, state: State) -> KeptProblems | None:
        """Problems that it keeps, for curricula to choose among beside the task's own; most memories keep none."""
        return None


class RolloutPlan(Part):
    """How rows are sampled, where not in the usual way of the domain: it builds the rollout of a task."""

    scope = "step"
    domain: ClassVar[Literal["text", "control"]] = "text"
    """The kind of task it samples."""
    provides: ClassVar[frozenset[str]]
    """Columns its rows have beyond the basic ones."""
    samples: ClassVar[bool] = True
    """Whether the policy writes its rows. Those that others wrote have no reward, and nobody's log-probabilities."""
    scored_last: ClassVar[bool] = True
    """Whether nothing that is sampled depends on what other answers of the step earned, so that scoring can follow sampling."""

    def build(self, task: object, policy: object, **sizes: Any) -> Rollout:
        """The rollout of ``tasks`` groups of ``samples``, with the run's ``seed``.

        In text there are also ``sampling`` and perhaps an ``engine``, without which it takes the torch engine; in control ``envs``,
        ``workers`` and ``normalise_observations``.
        """
        raise NotImplementedError


class DataContext(Protocol):
    """What the learner does for a `Data` part."""

    def evaluate(self, rows: Trajectories, columns: frozenset[str]) -> View:
        """The policy's columns on any rows, before the step's first update, without gradient."""

    def teacher(self, rows: Trajectories) -> Trajectories:
        """A reference answer to the task of each group, scored, with the group's number and nobody's log-probabilities."""

    def join(self, batches: list[Trajectories]) -> Trajectories:
        """Several batches as one. What only some of them measured (``signal``) is zero in the others."""

    def sample(self, turns: Sequence[Any]) -> Trajectories:
        """Answers to further turns (`upslope.tasks.turns.Turn`), turn by turn, scored: one batch for the engine."""

    def written(self, turns: Sequence[Any], texts: Sequence[str]) -> Trajectories:
        """Rows as if these turns, of one sample each, had been answered so; nobody sampled them."""

    def problems(self, rows: Trajectories) -> list[Any]:
        """The problem of each row (`upslope.tasks.text.Problem`)."""

    @property
    def task(self) -> Any:
        """What the problems are of (`upslope.tasks.text.TextTask`)."""

    def fits(self, prompts: Sequence[Prompt]) -> list[bool]:
        """Which prompts leave room for an answer."""

    @property
    def judge(self) -> Any:
        """Who compares answers in the run (`upslope.rewards.judging.Judge`); nothing where nobody was asked to."""

    @property
    def seed(self) -> int:
        """That of the run."""

    def rng(self) -> np.random.Generator:
        """Random numbers of this step for the part, the same at every call."""


class Data(Part):
    """What else enters the step: the rows with others joined to them, with columns measured, or with rows put ``aside`` for a term.

    It runs when the rewards are known and the step's tasks have been filtered and refilled; the filters then look at all rows, its
    own among them. One with state is updated with the rows the step learned from, annotated.
    """

    scope = "step"
    provides: ClassVar[frozenset[str]] = frozenset()
    """Columns that the rows have when it has run, for parts that need them."""

    def speakers(self) -> frozenset[str]:
        """References of the method that sample turns it asks for (`upslope.tasks.turns.Turn`, ``by``)."""
        return frozenset()

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        raise NotImplementedError

    def metrics(self, rows: Trajectories) -> Metrics:
        """What a step reports of it; ``rows`` are all that were sampled, as the data parts left them."""
        return {}


class Reference(Part):
    """With whom the policy is compared: copies of it that are kept and renewed, or the policy itself on other inputs.

    A reference says what it keeps, when that is renewed and how, and what of the rows it sees; the learner does the rest.
    """

    scope = "step"
    moves_copies: ClassVar[bool] = True
    """Whether `renew` may change the weights of a copy. One that never moves is held in the precision of products on a GPU."""

    @property
    def copies(self) -> int:
        """Copies of the policy that it keeps at the most: what it costs in memory. A class may say it as a number."""
        return 0

    def begin(self, policy: Policy, start: Policy | None) -> tuple[Policy, ...]:
        """The copies (`Policy.frozen_copy`) as the run begins; ``start`` is the policy as it was then, if anybody keeps it."""
        return ()

    def due(self, step: int) -> bool:
        """Whether the copies are renewed before this step (the first is 1). A controller may ask for it at other times."""
        return False

    def renew(self, kept: tuple[Policy, ...], policy: Policy) -> tuple[Policy, ...]:
        """The copies from now on; ``policy`` is as it is before the coming step."""
        return kept

    def shown(self, kept: tuple[Policy, ...], uniform: float) -> tuple[Policy, ...]:
        """Those of the copies that this step may compare with; ``uniform`` in [0, 1) is drawn for the reference and the step."""
        return kept

    def compared(self, kept: tuple[Policy, ...], policy: Policy) -> Policy:
        """Whose log-probabilities are the reference's; ``kept`` are the copies that are `shown`."""
        return kept[0] if kept else policy

    def sees(self, rows: Trajectories) -> Trajectories:
        """The rows as this reference sees them."""
        return rows


class PolicyPart(Part):
    """What a method says of its policy, under ``policy``: a `ModelView` of a language model, or the `Network` of a controller."""


class ModelView(PolicyPart):
    """Which view of a language model is trained: a method's ``policy``. Sampling does not know it."""

    def annotate(self, policy: object, rows: Trajectories) -> Trajectories:
        """The rows with what must be known of the policy as it is before the step's first update."""
        return rows

    def applied(self, model: object, experts: Tensor | None = None) -> AbstractContextManager[None]:
        """While the context lasts, ``model`` gives the logits to learn from; ``experts`` are those noted for its tokens."""
        raise NotImplementedError


class Network(PolicyPart):
    """The network that acts in control: a method's ``policy`` there. It builds the policy of a task."""

    def build(self, task: object, seed: int) -> object:
        """The policy for a task's observations and actions, untrained, with weights drawn from the seed."""
        raise NotImplementedError


class Reward(Part):
    """Changes the reward after the task gave it: takes a batch, gives the batch with ``reward`` or ``step_reward`` changed."""

    scope = "step"

    def __call__(self, batch: Batch) -> Batch:
        raise NotImplementedError

    def metrics(self, rows: Batch) -> Metrics:
        """What a step reports of it; ``rows`` are all that were sampled, scored."""
        return {}


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

    def metrics(self, rows: Batch) -> Metrics:
        """What a step reports of it; ``rows`` are those it gave an advantage, before late filters drop some."""
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
    by_row: ClassVar[bool] = True
    """Whether it counts rows or their lengths: then an update holds whole rows. False: it only counts decisions."""

    def __call__(self, batch: Batch) -> Tensor:
        raise NotImplementedError


class Regularizer(Part):
    """A further loss per decision ``[N, T]``, aggregated as the surrogate is."""

    aggregated: ClassVar[bool] = True
    """False: the term is a share of a sum already (a loss per group spread over its decisions) and is added as it is."""

    def __call__(self, batch: Batch) -> Tensor:
        raise NotImplementedError


class ModelPart(Part):
    """Something learned beside the policy: a `Model` on the policy's trunk, or a `Learned` one with a network of its own."""


class Model(ModelPart, Regularizer):
    """Something learned beside the policy: an output on its trunk, and the loss that fits it. The column has the model's name."""

    lr_scale: float
    """Its learning rate as a multiple of the policy's."""
    scores: ClassVar[Literal["", "answers", "pairs"]] = ""
    """What it says at a row's last decision is what the run is for: the worth of the answer, or of the first of two. Such a run
    is a reward model, judged by how it ranks, and answers nothing."""

    def head(self) -> Head:
        return Head()


class SlowWeights(NamedTuple):
    """Weights that networks return to, part of the way, after every few updates (Reptile, Lookahead)."""

    networks: tuple[str, ...]
    """``"policy"`` and names of models."""
    every: int
    """Updates between two steps of the slow weights."""
    rate: float
    """How far they go to where the networks have learned to; there the networks go on."""


class Controller(Part, Stateful):
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

    def slow_weights(self) -> SlowWeights | None:
        """Slow weights that networks learning from stored experience are to keep."""
        return None

    def ends_passes(self, metrics: Metrics) -> bool:
        """Whether the update just made should be the step's last."""
        return False


class LossTerm(Part):
    """A further loss, over rows of another source, with parts of its own: what a method's ``terms`` hold."""

    scope = "step"
    source: str
    """Name of the rows that a data part put aside for it."""
    when: Literal["before", "with", "after"]
    """Whether it has an update of its own, before the step's or after them, or adds its loss to the updates that the groups of its
    rows were dealt to."""
    scale: float
    """What its loss is multiplied with."""

    def as_method(self, name: str, of: Method) -> Method:
        """The method this term is on its rows."""
        raise NotImplementedError
