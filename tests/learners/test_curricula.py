"""Curricula in a run: what is refused before the first rollout, and what memories are told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from upslope.errors import MethodError
from upslope.learners.curricula import with_advantage
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import find
from upslope.objective.base import Curriculum, Memory, State
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks.text import Problem, Scores
from upslope.types import Batch, Method, Metrics, Offer, Order

SIZES = Settings(tasks_per_step=4, samples_per_task=4, warm_start=0.0, eval_problems=4, max_tokens=3, steps=4, lr=1e-3, warmup=0)


@dataclass(frozen=True)
class Weights(Curriculum):
    """As curricula were written before."""

    candidates: int = 2

    def __call__(self, tasks: Tensor, recall) -> Tensor:  # type: ignore[override]
        return torch.ones(len(tasks))


@dataclass(frozen=True)
class Halfway(Curriculum):
    """Gives back weights in place of an order."""

    candidates: int = 2

    def __call__(self, offer: Offer) -> Order:
        return torch.ones(len(offer))  # type: ignore[return-value]


@dataclass(frozen=True)
class Sizes(Curriculum):
    """Groups of 1, 2, 3 and so on, of which the last takes what is left of the budget."""

    candidates: int = 2
    memory: str = ""

    def check_sizes(self, tasks: int, samples: int) -> None:
        if samples < 3:
            raise MethodError(f"Sizes wants 3 answers to each task, and there are {samples}.")

    def __call__(self, offer: Offer) -> Order:
        if self.memory:
            offer.recall(self.memory)
        samples = torch.arange(1, offer.wanted + 1)
        samples[-1] += offer.wanted * offer.samples - samples.sum()
        return Order(torch.arange(offer.wanted), samples)


@dataclass(frozen=True)
class Told(Memory):
    """Keeps the advantages it was told."""

    def init(self) -> State:
        return {"advantage": torch.zeros(0), "rows": 0}

    def recall(self, state: State, tasks: Tensor) -> Tensor:
        return torch.zeros(len(tasks))

    def update(self, state: State, batch: Batch, metrics: Metrics) -> State:
        assert batch.advantage is not None
        return {"advantage": batch.row_mean(batch.advantage).cpu(), "rows": batch.rows}


def letters(problems: list[Problem], responses: list[str]) -> Scores:
    """Pays for letters, so that an untrained model earns something."""
    reward = [sum(map(str.isalpha, response)) / 3 for response in responses]
    return Scores(reward, [False] * len(reward))


def learner(method: Method, settings: Settings = SIZES) -> PolicyGradient:
    made = set_up(method, "pairs:largest=20", "tiny:layers=1,width=32", settings)
    object.__setattr__(made.task, "score", letters)
    return PolicyGradient(made.method, made.policy, made.rollout, made.settings, made.policy.frozen_copy())


grpo = find("grpo")


def test_a_curriculum_of_the_old_kind_is_told_what_to_write():
    with pytest.raises(MethodError, match=r"called with \(tasks, recall\).*draw_by_weight"):
        learner(grpo.derive(curriculum=Weights()))


def test_what_is_no_order_is_refused():
    with pytest.raises(MethodError, match=r"curriculum \(Halfway\) returned a tensor of shape \[\d\].*draw_by_weight"):
        learner(grpo.derive(curriculum=Halfway())).step(1)
    with pytest.raises(MethodError, match="recalls the memory 'success'; this method has none"):
        learner(grpo.derive(curriculum=Sizes(memory="success"))).step(1)


def test_sizes_that_do_not_do_are_refused_before_the_first_rollout():
    with pytest.raises(MethodError, match="3 answers to each task, and there are 2"):
        learner(grpo.derive(curriculum=Sizes()), Settings(**{**vars(SIZES), "samples_per_task": 2}))


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_memories_are_told_the_advantage_of_every_row(name):
    """Of those that a filter dropped, too: they had none."""
    made = learner(find(name).derive(curriculum=Sizes(), memory={"told": Told()}))
    for step in (1, 2):
        told = made.step(step)
        state, kept = made.states["memory.told"], told["kept_rows"]
        assert state["rows"] == told["samples"] == len(state["advantage"])
        assert made.last is None or float(state["advantage"].abs().sum()) > 0
        assert int((state["advantage"] != 0).sum()) <= round(kept * told["samples"])


def test_groups_of_different_sizes_are_learned_from():
    """Rewards, groups and advantages of a step with groups of 1, 2, 3 and 10 answers."""
    made = learner(grpo.derive(curriculum=Sizes()))
    for step in (1, 2, 3):
        told = made.step(step)
        rows = made.last
        assert rows is not None and rows.group.bincount().tolist() == [1, 2, 3, 10] and told["samples"] == 16
        advantage = rows.row_mean(rows.advantage)
        for group in range(4):
            reward, own = rows.reward[rows.group == group], advantage[rows.group == group]
            spread = reward.std() if len(reward) > 1 else torch.tensor(0.0)
            expected = torch.zeros_like(reward) if bool((reward == reward[0]).all()) else (reward - reward.mean()) / (spread + 1e-6)
            torch.testing.assert_close(own, expected, atol=1e-4, rtol=1e-4)
    assert {note["chosen"]["answers"] for note in rows.info} == {1, 2, 3, 10}


def test_rows_that_were_not_learned_from_have_no_advantage():
    made = learner(grpo)
    made.step(1)
    rows = made.last
    kept = rows.take_rows(torch.tensor([5, 2]))
    found = with_advantage(rows.replace(advantage=None), kept).advantage
    assert torch.equal(found[[5, 2]], rows.advantage[[5, 2]]) and not found[[0, 1, 3, 4]].any()
    assert with_advantage(rows.replace(advantage=None), rows.replace(advantage=None)).advantage is None
