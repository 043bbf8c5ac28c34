"""A pool of problems that were made during the run: what is kept of them, and which of them a step takes."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from upslope.errors import Remark
from upslope.objective.base import Curriculum, Memory, State
from upslope.rollout.choosing import category_numbers
from upslope.rollout.text import candidate
from upslope.runtime.seeding import stable_hash
from upslope.tasks.problem_text import problem_of, text_of
from upslope.tasks.text import Problem
from upslope.types import Batch, KeptProblems, Metrics, Offer, Order
from upslope.types.places import places, smallest

Signal = Literal["max-mean", "max-min", "variance", "failure"]


def informativeness(rewards: Tensor, index: Tensor, groups: int, signal: Signal) -> Tensor:
    r"""How much there is to learn from each group ``[G]``, by what its answers earned from the task ``[N]``; ``index`` says whose
    they are.

    ``max-mean`` is an estimate of regret, the best answer less the usual one: :math:`\max_j r_j - \frac1n \sum_j r_j`. With rewards
    of 0 and 1 and a share p of right answers it is 1 - p, and 0 where none or all are right. ``max-min`` and ``variance`` (over n)
    are 0 there too; ``failure`` is the largest reward of all groups less the mean, and so largest where nothing is right.
    """
    zeros, rewards = torch.zeros(groups, dtype=torch.float64), rewards.cpu().double()
    index = index.cpu()
    count = zeros.index_add(0, index, torch.ones_like(rewards)).clamp_min(1)
    mean = zeros.index_add(0, index, rewards) / count
    high = torch.full_like(zeros, -torch.inf).scatter_reduce(0, index, rewards, "amax")
    low = torch.full_like(zeros, torch.inf).scatter_reduce(0, index, rewards, "amin")
    if signal == "failure":
        return (rewards.max() - mean).clamp_min(0) if len(rewards) else zeros
    if signal == "variance":
        found = zeros.index_add(0, index, (rewards - mean[index]) ** 2) / count
    else:
        found = high - (mean if signal == "max-mean" else low)
    return torch.where(high == low, 0.0, found)  # a mean of equal numbers may differ from them in the last bit


@dataclass(frozen=True)
class ProblemPool(Memory):
    """Keeps the problems that data parts made (``made``), each with a priority, and offers them to the curriculum.

    The priority is what the last answers said (`informativeness`); a new problem has that of the one it was made from until it is
    answered. Problems are kept as text, so that a run that was stopped makes the very same again.

    Fields:
        keep: the most problems it holds. Beyond that those of the lowest priority go, of equal ones the oldest. Larger remembers
            longer, makes checkpoints larger, and costs a step half a millisecond for every thousand.
        signal: what the priority is; see `informativeness`.
    """

    text_only: ClassVar[bool] = True
    ranges: ClassVar = {"keep": "[1, inf)"}

    keep: int = 4096
    signal: Signal = "max-mean"

    def init(self) -> State:
        none = torch.zeros(0, dtype=torch.float64)
        numbers = {"task": none.long(), "priority": none, "difficulty": none.clone(), "category_number": none.long()}
        return {**numbers, "category": [], "text": []}

    def recall(self, state: State, tasks: Tensor) -> Tensor:
        """The priority of each task; NaN for one that is not in the pool."""
        found = torch.full(tasks.shape, torch.nan, dtype=torch.float64)
        if len(state["task"]):
            place, known = places(state["task"], tasks.cpu())
            found = torch.where(known, state["priority"][place], found)
        return found.to(tasks.device)

    def problems(self, state: State) -> KeptProblems | None:
        texts: Sequence[str] = state["text"]
        return KeptProblems(
            state["task"], state["category"], state["difficulty"], lambda place: problem_of(texts[place]),
            _category_number(state), state["priority"],
        )  # fmt: skip

    def measured(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The tasks of a batch, each once and in ascending order, and how much there is to learn from each."""
        tasks, index = torch.unique(batch.task.cpu(), return_inverse=True)
        return tasks, informativeness(batch.components.get("task", batch.reward), index, len(tasks), self.signal)

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        seen, info = self.measured(batch)
        priority = state["priority"].clone()
        if len(state["task"]):
            place, known = places(state["task"], seen)
            priority[place[known]] = info[known]
        begins = dict(zip(seen.tolist(), info.tolist(), strict=True))
        made = list({each.id: each for each in batch.made}.values())
        _, there = places(state["task"], torch.tensor([each.id for each in made], dtype=torch.int64))
        new = [each for each, known in zip(made, there.tolist(), strict=True) if not known]
        first = [begins.get(each.id, begins.get(_parent(each), 0.0)) for each in new]
        told = [candidate(problem) for problem in new]
        column = torch.tensor
        grown: State = {
            "task": torch.cat([state["task"], column([each.task for each in told], dtype=torch.int64)]),
            "priority": torch.cat([priority, column(first, dtype=torch.float64)]),
            "difficulty": torch.cat([state["difficulty"], column([each.difficulty for each in told], dtype=torch.float64)]),
            "category_number": torch.cat([_category_number(state), category_numbers([each.category for each in told])]),
            "category": [*state["category"], *(each.category for each in told)],
            "text": [*state["text"], *map(text_of, new)],
        }
        return self._bounded(grown)

    def _bounded(self, state: State) -> State:
        if len(state["task"]) <= self.keep:
            return state
        gone = smallest(state["priority"], len(state["task"]) - self.keep)  # of equal ones the first, which are the oldest
        stays = torch.ones(len(state["task"]), dtype=torch.bool)
        stays[gone] = False
        texts = {name: [*itertools.compress(state[name], stays.tolist())] for name in ("category", "text")}
        return {name: state[name][stays] for name in ("task", "priority", "difficulty", "category_number")} | texts


@dataclass(frozen=True)
class FromPool(Curriculum):
    """A share of the step from a pool, drawn without replacement; the rest are problems of the task.

    Where the pool has fewer, the task gives more. Problems of priority 0 come last, by luck alone.

    Fields:
        memory: the pool.
        share: of the step's problems. 0 takes the task's own as they come, 1 none of them once the pool is full.
        draw: by ``"priority"``, or ``"uniform"``.
        warm: share of the run's steps before it takes any. Longer starts from better estimates.
        candidates: problems of the task drawn for each one that is wanted. Above 1 fewer are missing where the task often draws
            the same.
    """

    text_only: ClassVar[bool] = True
    ranges: ClassVar = {"share": "[0, 1]", "warm": "[0, 1]", "candidates": "[1, inf)"}

    memory: str = "pool"
    share: float = 0.75
    draw: Literal["priority", "uniform"] = "priority"
    warm: float = 0.0
    candidates: int = 1

    def __call__(self, offer: Offer) -> Order:
        own = len(offer) - offer.kept
        priority = offer.recall(self.memory)
        wanted = round(self.share * offer.wanted) if offer.progress >= self.warm else 0
        taken = min(max(wanted, offer.wanted - own), offer.kept)
        weight = priority[own:] if self.draw == "priority" else torch.ones(offer.kept)
        drawn = own + race(weight, offer.uniform[own:], taken)
        chosen = torch.cat([torch.arange(min(offer.wanted - taken, own)), drawn])
        told = {"pool_size": float(offer.kept)} | ({"pool_priority": float(priority[own:].mean())} if offer.kept else {})
        from_pool = (chosen >= own).double()
        return Order(chosen, why={"from_pool": from_pool, "priority": priority[chosen]}, metrics=told)


def race(weight: Tensor, uniform: Tensor, count: int | None = None) -> Tensor:
    """Places in an order drawn by weight without replacement; those of weight 0 come last, in an order drawn by luck.

    Args:
        count: So many, the first; all of them unless given. Of many places few are drawn much sooner than all are ordered.
    """
    luck = -(1 - uniform).log()
    time, places = (luck / weight.double()).nan_to_num(nan=torch.inf, posinf=torch.inf), torch.arange(len(luck))
    if count is not None and 0 < count < len(luck):
        places = (time <= time.topk(count, largest=False, sorted=False).values.max()).nonzero().squeeze(1)
    lucky = places[torch.argsort(luck[places], stable=True)]
    return lucky[torch.argsort(time[lucky], stable=True)][:count]


# -- problems as text ----------------------------------------------------------------------------------------------------------


def can_be_kept(problem: Problem) -> bool:
    """Whether a problem can be made again from text; where not, the user is told why."""
    try:
        kept = problem_of(text_of(problem)) == problem
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        kept = False
    if not kept:
        told = "is not plain data (text, numbers, lists, dicts), so the problems made are not kept"
        warnings.warn(Remark(f"what a problem says of itself {told}; it begins {problem.prompt[:60]!r}."), stacklevel=2)
    return kept


def _parent(problem: Problem) -> int:
    """The task of the problem that another was made from."""
    return stable_hash(next(iter(problem.info.get("made_from", ())), ""))


def _category_number(state: State) -> Tensor:
    """The number of each problem's category. Checkpoints of earlier versions have only the names."""
    found: Tensor | None = state.get("category_number")
    return category_numbers(state["category"]) if found is None else found
