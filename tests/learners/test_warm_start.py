"""The warm start step by step, on a policy of one number whose accuracies are given."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from upslope.errors import Remark
from upslope.learners import warm_start as module
from upslope.learners.warm_start import BATCH, CHECK_PROBLEMS, LEARNING_RATE, MOST_STEPS, warm_start
from upslope.types import View


class OneNumber:
    """Gives every token of an answer the log-probability ``-w``: the loss of a batch is w whatever its lengths, its gradient 1."""

    name = "one number"

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.tensor(2.0))

    def trainable(self):
        return {"policy": [self.weight]}

    def evaluate(self, rows) -> View:
        return View(-self.weight * torch.ones_like(rows.sampled))


def run(monkeypatch: pytest.MonkeyPatch, accuracies: list[float], target: float = 0.8, most: int = 40, left: int = 200):
    """Result, weight, and at which steps it was looked at; the weight after each step is noted too."""
    policy, looks, weights, asked = OneNumber(), list[tuple[int, int, str]](), list[float](), list[tuple]()

    def sample(count, split, random):
        weights.append(policy.weight.item())
        asked.append((count, split, int(random.integers(1 << 30))))
        return [SimpleNamespace(answer="a", solution="a")] * count

    def evaluate(task, policy, *, problems, max_tokens, split):
        looks.append((len(weights), problems, split, max_tokens))
        return SimpleNamespace(accuracy=accuracies[len(looks) - 1])

    sampled = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    monkeypatch.setattr(module, "teacher_rows", lambda policy, problems: SimpleNamespace(sampled=sampled))
    monkeypatch.setattr(module, "evaluate_text", evaluate)
    monkeypatch.setattr(module, "distinct_problems", lambda task, count, split, seed: [None] * min(count, left))
    task, told = SimpleNamespace(name="task", sample=sample, choices=None), []
    found = warm_start(policy, task, target, max_tokens=6, seed=3, most_steps=most, progress=lambda *seen: told.append(seen))
    return found, [*weights, policy.weight.item()], looks, told, asked


def test_it_looks_every_fifth_step_then_every_second_and_stops_at_the_target(monkeypatch):
    # A quarter of the target is 0.2: from then on it looks twice as often and learns at half the rate.
    found, weights, looks, told, asked = run(monkeypatch, [0.1, 0.2, 0.21, 0.5, 0.8])
    assert [step for step, *_ in looks] == [5, 10, 15, 16, 18] and found == (18, 0.8)
    assert {tuple(rest) for _, *rest in looks} == {(CHECK_PROBLEMS, "tune", 6)} and CHECK_PROBLEMS == 200
    assert told == [(5, 0.1), (10, 0.2), (15, 0.21), (16, 0.5), (18, 0.8)]
    moved = [before - after for before, after in pairwise(weights)]
    # Adam on a gradient that is always the same moves by the learning rate.
    assert moved[:15] == pytest.approx([LEARNING_RATE] * 15, rel=2e-3) and LEARNING_RATE == 7e-4
    assert moved[15:] == pytest.approx([LEARNING_RATE / 2] * 3, rel=2e-3)
    assert {(count, split) for count, split, _ in asked} == {(BATCH, "train")} and BATCH == 64
    assert len({number for *_, number in asked}) == len(asked) == 18, "other problems in each step"


def test_it_gives_up_after_so_many_steps(monkeypatch):
    found, weights, *_ = run(monkeypatch, [0.0] * 8, most=12)
    assert found == (12, 0.0) and len(weights) == 13 and MOST_STEPS == 2000


def test_the_gradient_is_clipped_to_one(monkeypatch):
    grads = []
    real = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, limit: grads.append(limit) or real(parameters, limit))
    _, weights, *_ = run(monkeypatch, [1.0])
    assert grads == [1.0] * 5 and len(weights) == 6


def test_where_hardly_a_problem_is_left_to_tell_its_end_it_ends_by_those_it_learns_from(monkeypatch):
    """Of three problems the accuracy would stay at a third, and the warm start go on until its last step."""
    with pytest.warns(Remark, match="task leaves 3 problems to tell when the warm start is over, too few"):
        found, _, looks, _, _ = run(monkeypatch, [0.1, 0.9], left=3)
    assert found == (10, 0.9) and {split for _, _, split, _ in looks} == {"train"}
