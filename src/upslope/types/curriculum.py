"""Curricula: what a step may take (`Offer`), and what it takes (`Order`)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from upslope.errors import MethodError
from upslope.types.part import Part
from upslope.types.places import smallest


def _no_memory(name: str) -> Tensor:
    raise MethodError(f"a curriculum recalls the memory {name!r}, and nobody remembers anything here.")


def _no_head(name: str) -> Tensor:
    raise MethodError(f"a curriculum reads the head {name!r} at the end of each prompt, and here there are no prompts.")


@dataclass(frozen=True, eq=False)
class Offer:
    """Tasks that a step may take, each once, in the order in which they were drawn.

    Fields:
        task: ``[M]`` integers, a hash of each task, the same in every step.
        category: ``[M]`` integers, a hash of the name of each task's category; all the same where the task has no categories.
        difficulty: ``[M]``, NaN where nobody knows it.
        uniform: ``[M]`` numbers in [0, 1), one for each task, to draw with.
        wanted: Tasks that the step asks for. The offer may have fewer, where a task has few problems.
        samples: Answers to each task unless the order says otherwise: ``wanted * samples`` is the step's budget.
        max_tokens: Tokens an answer may have unless the order says otherwise; 0 where nobody writes tokens.
        progress: Share of the run's steps that are done.
        attempt: 0 for a step's first tasks; then those that take the place of tasks which a filter dropped.
        seed: What `generator` draws from.
        names: The categories' names, by hash.
        kept: How many of them, the last, are problems that a memory has kept; those before are the task's own.
        kept_recalled: ``[kept, ...]``, what the memory that keeps them recalls of each of those; none: it is asked like the others.
        recall: ``recall(name)`` is what the method's memory of that name knows of the tasks, ``[M]`` or ``[M, ...]``.
        value: ``value(head)`` is what a head of the policy says at the end of each task's prompt ``[M]``, without gradient.
    """

    task: Tensor
    category: Tensor
    difficulty: Tensor
    uniform: Tensor
    wanted: int
    samples: int = 1
    max_tokens: int = 0
    progress: float = 0.0
    attempt: int = 0
    seed: int = 0
    names: Mapping[int, str] = field(default_factory=dict)
    kept: int = 0
    kept_recalled: Tensor | None = None
    recall: Callable[[str], Tensor] = _no_memory
    value: Callable[[str], Tensor] = _no_head

    def __len__(self) -> int:
        return len(self.task)

    def number(self, name: str) -> int:
        """The number of a category; -1 if no task offered has it."""
        return next((number for number, own in self.names.items() if own == name), -1)

    def generator(self, part: Part) -> np.random.Generator:
        """Random numbers for a part for which one to a task is not enough; the same at every call."""
        return np.random.default_rng((self.seed, zlib.crc32(type(part).__name__.encode())))


@dataclass(frozen=True, eq=False)
class KeptProblems:
    """Problems that a memory keeps, as curricula may know them. None is made again before it is chosen.

    Fields:
        task: ``[K]`` integers, the hash of each.
        category: The name of each one's category, empty where it has none.
        difficulty: ``[K]``, NaN where nobody knows it.
        problem: ``problem(place)`` is the one at a place (`upslope.tasks.text.Problem`).
        category_number: ``[K]``, the hash of each one's category, where the memory keeps it.
        recalled: ``[K, ...]``, what the memory itself recalls of each, where it tells.
    """

    task: Tensor
    category: Sequence[str]
    difficulty: Tensor
    problem: Callable[[int], Any]
    category_number: Tensor | None = None
    recalled: Tensor | None = None

    def __len__(self) -> int:
        return len(self.task)


@dataclass(frozen=True, eq=False)
class Order:
    """What a step takes of an `Offer`.

    Fields:
        chosen: ``[m]`` places in the offer, none twice; groups stand in this order.
        samples: ``[m]`` answers to each; none: the usual number.
        limit: Tokens an answer of this step may have; 0: as many as the run allows.
        temperature: What this step samples at; 0: the run's.
        why: What each was chosen by, ``[m]`` by name (``weight``, ``posterior``): recorded with its answers, and its mean logged.
        metrics: What else there is to log of the choice.
    """

    chosen: Tensor
    samples: Tensor | None = None
    limit: int = 0
    temperature: float = 0.0
    why: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def problem(self, offer: Offer) -> str:
        """What is wrong with it as an answer to this offer; empty if nothing is."""
        chosen = self.chosen.tolist()
        if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0 or max(chosen) >= len(offer):
            return f"chosen={chosen[:8]}: at least one place, none twice, of the {len(offer)} that were offered"
        if self.samples is not None and (len(self.samples) != len(chosen) or bool((self.samples < 1).any())):
            return f"samples={self.samples.tolist()[:8]}: a number of answers, at least 1, for each of {len(chosen)} chosen tasks"
        if self.limit < 0 or not self.temperature >= 0:
            return f"limit={self.limit} and temperature={self.temperature:g}: neither is below 0"
        if wrong := [name for name, values in self.why.items() if len(values) != len(chosen)]:
            return f"why[{wrong[0]!r}] of {len(self.why[wrong[0]])} numbers for {len(chosen)} chosen tasks"
        return ""


class Curriculum(Part):
    """Which tasks next, and how many answers to each: an `Order` for the `Offer` of a step."""

    scope = "step"
    candidates: int
    """Tasks drawn for each one that a step wants; 1 leaves nothing to choose, only how often each is answered."""

    def check_sizes(self, tasks: int, samples: int) -> None:
        """Refuses sizes of a step, tasks and answers to each, with which it cannot do what it promises."""

    def __call__(self, offer: Offer) -> Order:
        raise NotImplementedError


def draw_by_weight(offer: Offer, weight: Tensor) -> Order:
    """As many tasks as are wanted, drawn by weight ``[M]`` without replacement (Gumbel's race); weights need not sum to one."""
    weight = weight.double()
    luck = -(-(1 - offer.uniform).log()).log()
    order = smallest(-(weight.clamp_min(1e-300).log() + luck), offer.wanted)
    return Order(order, why={"weight": weight[order]})


def take_nearest(offer: Offer, distance: Tensor, why: Mapping[str, Tensor]) -> Order:
    """The tasks of the smallest distance ``[M]``, as many as are wanted, in the order offered; of equal ones those offered first.

    Args:
        why: What to record of the candidates ``[M]``, by name.
    """
    chosen = smallest(distance, offer.wanted).sort().values
    return Order(chosen, why={name: values[chosen] for name, values in why.items()})
