"""Choosing: what a rollout offers a curriculum, and what it tells of the order that it got."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.runtime.seeding import stable_hash
from upslope.types import KeptProblems, Metrics, Offer, Order, Sampling
from upslope.types.places import found_in

FEW = 8
"""Categories of which each has a metric of its own; where there are more, nobody would look at them."""

Decide = Callable[[Offer], Order]


class Candidate(NamedTuple):
    """What a curriculum may know of a task."""

    task: int
    category: str = ""
    difficulty: float = math.nan


@dataclass(frozen=True)
class Asked:
    """How the tasks of a step are to be answered.

    Fields:
        each: Answers to each task.
        sampling: How they are written, where they are.
        notes: What is recorded of each task, for people.
    """

    each: list[int]
    sampling: Sampling | None = None
    notes: list[JsonDict] | None = None

    @property
    def per_answer(self) -> list[JsonDict]:
        """The notes, once for each answer."""
        notes = self.notes or [{} for _ in self.each]
        return [note for note, own in zip(notes, self.each, strict=True) for _ in range(own)]

    def limited(self, order: Order) -> Asked:
        """With the token limit and the temperature of an order."""
        if self.sampling is None:
            return self
        most = min(order.limit or self.sampling.max_tokens, self.sampling.max_tokens)
        heat = order.temperature or self.sampling.temperature
        return replace(self, sampling=replace(self.sampling, max_tokens=most, temperature=heat))


def category_id(name: str) -> int:
    """The number by which curricula and memories know a category."""
    return stable_hash(name)


def category_numbers(names: Sequence[str]) -> Tensor:
    """The number of each of these categories."""
    number = {name: category_id(name) for name in set(names)}
    return torch.from_numpy(np.fromiter(map(number.__getitem__, names), np.int64, len(names)))


def offered(candidates: Sequence[Candidate], uniform: Tensor, wanted: int, samples: int) -> Offer:
    """These tasks, as they are offered to a curriculum."""
    number = {name: category_id(name) for name in {each.category for each in candidates}}
    return Offer(
        task=torch.tensor([each.task for each in candidates], dtype=torch.int64),
        category=torch.tensor([number[each.category] for each in candidates], dtype=torch.int64),
        difficulty=torch.tensor([each.difficulty for each in candidates], dtype=torch.float32),
        uniform=uniform,
        wanted=wanted,
        samples=samples,
        names={found: name for name, found in number.items()},
    )


def beside(offer: Offer, kept: KeptProblems, uniform: Tensor) -> Offer:
    """An offer with kept problems behind the task's own; ``uniform`` has a number for each."""
    number = {name: category_id(name) for name in set(kept.category)}
    category = kept.category_number
    if category is None:
        category = category_numbers(kept.category)
    return replace(
        offer,
        task=torch.cat([offer.task, kept.task]),
        category=torch.cat([offer.category, category]),
        difficulty=torch.cat([offer.difficulty, kept.difficulty.float()]),
        uniform=torch.cat([offer.uniform, uniform]),
        names={**offer.names, **{found: name for name, found in number.items()}},
        kept=len(kept),
        kept_recalled=kept.recalled,
    )


def others(kept: KeptProblems | None, than: Collection[int]) -> KeptProblems | None:
    """The kept problems whose tasks are none of these; nothing where none is left."""
    if kept is None or not len(kept):
        return None
    gone = found_in(kept.task.numpy(), np.fromiter(than, np.int64, len(than)))
    if not len(gone):
        return kept
    if len(gone) == len(kept):
        return None
    places, ends = torch.from_numpy(np.delete(np.arange(len(kept)), gone)), [-1, *gone.tolist(), len(kept)]
    category: list[str] = []
    for last, end in itertools.pairwise(ends):
        category += kept.category[last + 1 : end]

    def of_those(column: Tensor | None) -> Tensor | None:
        return None if column is None else column.index_select(0, places)

    return KeptProblems(
        kept.task.index_select(0, places),
        category,
        kept.difficulty.index_select(0, places),
        lambda place: kept.problem(int(places[place])),
        of_those(kept.category_number),
        of_those(kept.recalled),
    )


class Choices:
    """What was chosen since somebody last asked, for metrics."""

    def __init__(self) -> None:
        self._made: list[tuple[Offer, Order]] = []

    def add(self, offer: Offer, order: Order) -> Asked:
        """Remembers a choice; how its tasks are to be answered."""
        self._made.append((offer, order))
        return Asked(_each(offer, order), notes=_notes(offer, order))

    def metrics(self) -> Metrics:
        """Means over the tasks chosen since the last call: what each was chosen by, difficulty, answers, shares of categories."""
        made, self._made = self._made, []
        if not made:
            return {}
        found: Metrics = {name: float(value) for _, order in made for name, value in order.metrics.items()}
        for name in made[0][1].why:
            values = torch.cat([order.why[name].double() for _, order in made])
            if not bool(values.isnan().all()):  # of those chosen in another way it is NaN
                found[f"chosen_{name}"] = float(values.nanmean())
        difficulty = torch.cat([offer.difficulty[order.chosen] for offer, order in made])
        if not bool(difficulty.isnan().all()):
            found["chosen_difficulty"] = float(difficulty.nanmean())
        if any(order.samples is not None for _, order in made):
            answers = [n for offer, order in made for n in _each(offer, order)]
            found |= {"fewest_answers": float(min(answers)), "most_answers": float(max(answers))}
        if limits := [order.limit for _, order in made if order.limit]:
            found["token_limit"] = float(limits[0])
        return found | _shares(made)


def _shares(made: list[tuple[Offer, Order]]) -> Metrics:
    """The share of each category among the tasks chosen, where there are a few."""
    names = {number: name for offer, _ in made for number, name in offer.names.items()}
    if not 2 <= len(names) <= FEW:
        return {}
    chosen = torch.cat([offer.category[order.chosen] for offer, order in made]).tolist()
    return {
        f"share_{_plain(name)}": chosen.count(number) / len(chosen) for number, name in sorted(names.items(), key=lambda x: x[1])
    }


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_") or "none"


def _each(offer: Offer, order: Order) -> list[int]:
    return [offer.samples] * len(order.chosen) if order.samples is None else order.samples.tolist()


def _notes(offer: Offer, order: Order) -> list[JsonDict]:
    """Why each was chosen, in a few numbers."""
    notes: list[JsonDict] = []
    columns = {"difficulty": offer.difficulty[order.chosen].tolist()} | {name: each.tolist() for name, each in order.why.items()}
    for number, (kind, answers) in enumerate(zip(offer.category[order.chosen].tolist(), _each(offer, order), strict=True)):
        note: JsonDict = {"answers": answers}
        if category := offer.names.get(kind, ""):
            note["category"] = category
        numbers = {name: float(values[number]) for name, values in columns.items()}
        notes.append(note | {name: float(f"{value:.4g}") for name, value in numbers.items() if math.isfinite(value)})
    return notes
