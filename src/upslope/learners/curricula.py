"""Curricula in a learner: what the method remembers is put into an offer, and what comes back is checked."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.errors import MethodError
from upslope.runtime.settings import Settings
from upslope.types import KeptProblems, Memory, Method, Offer, Order, State, Trajectories, call, wrong


@dataclass(frozen=True, eq=False)
class Ordering:
    """What a rollout asks of a method: an order for its offer.

    Fields:
        states: Of the method's parts, by path.
        progress: Share of the run's steps that are done.
    """

    method: Method
    states: dict[str, State]
    progress: float

    def __call__(self, offer: Offer) -> Order:
        curriculum = self.method.curriculum
        assert curriculum is not None
        offer = replace(offer, progress=self.progress, recall=lambda name: self._recalled(offer, name))
        order: object = call(self.method, curriculum, curriculum, offer)
        if not isinstance(order, Order):
            raise wrong(self.method, curriculum, order, "an Order; draw_by_weight(offer, weights) makes one of weights")
        if problem := order.problem(offer):
            raise MethodError(f"curriculum ({type(curriculum).__name__}) ordered {problem}.")
        return order

    def _recalled(self, offer: Offer, name: str) -> Tensor:
        memories = dict(self.method.memory)
        if name not in memories:
            raise MethodError(
                f"{self.method.name}: the curriculum recalls the memory {name!r}; this method has {', '.join(memories) or 'none'}."
            )
        memory = memories[name]
        known_by = offer.category if memory.by == "category" else offer.task
        recalled = offer.kept_recalled if type(memory).problems is not Memory.problems else None
        if recalled is not None:
            known_by = known_by[: len(offer) - offer.kept]
        found = call(self.method, memory, memory.recall, self.states[f"memory.{name}"], known_by)
        return found if recalled is None else torch.cat([found, recalled])


def kept_problems(method: Method, states: dict[str, State]) -> KeptProblems | None:
    """What a memory of the method has kept for its curriculum, if anything."""
    kept = (call(method, memory, memory.problems, states[f"memory.{name}"]) for name, memory in method.memory)
    return next((each for each in kept if each is not None), None)


def check_curriculum(method: Method, settings: Settings) -> None:
    """Refuses, before the first rollout, a curriculum of the old kind and one that the sizes of a step do not allow."""
    curriculum = method.curriculum
    if curriculum is None:
        return
    taken = list(inspect.signature(curriculum.__call__).parameters)  # type: ignore[operator]
    if len(taken) != 1:
        raise MethodError(
            f"curriculum ({type(curriculum).__name__}) is called with ({', '.join(taken)}), as curricula once were: they now take "
            "one Offer and return an Order. Write 'def __call__(self, offer)', take offer.task and offer.recall(name), and return "
            "draw_by_weight(offer, weights)."
        )
    keeping = [name for name, memory in method.memory if type(memory).problems is not Memory.problems]
    if len(keeping) > 1:
        raise MethodError(f"{method.name} has several memories that keep problems ({', '.join(keeping)}); leave all but one out.")
    if settings.tasks_per_step:
        call(method, curriculum, curriculum.check_sizes, settings.tasks_per_step, settings.samples_per_task)


def with_advantage(sampled: Trajectories, learned: Trajectories) -> Trajectories:
    """All rows that were sampled, with the advantage that those learned from had, and what it said of each row beside it.

    For rows that a filter dropped the advantage is zero, and signals are NaN.
    """
    if learned.advantage is None or learned.key is None or sampled.key is None or not learned.rows:
        return sampled
    (names, order), wanted = learned.key[:, 0].sort(), sampled.key[:, 0].contiguous()
    place = torch.searchsorted(names, wanted).clamp_max(len(names) - 1)
    found, width = names[place] == wanted, sampled.sampled.shape[1]
    advantage = learned.advantage[order[place]] * found.unsqueeze(1)
    of_rows = {name: torch.where(found, column[order[place]], torch.nan) for name, column in learned.signal.items()
               if name not in sampled.signal and column.dim() == 1 and column.is_floating_point()}  # fmt: skip
    return sampled.replace(advantage=F.pad(advantage, (0, width - advantage.shape[1])), signal={**sampled.signal, **of_rows})
