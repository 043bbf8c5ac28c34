"""Updates on single decisions: recorded once and repeated, with the numbers of the method as it is written."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from batches import random_batch
from fast_methods import few_fast

from upslope.learners.nonfinite import NonFinite
from upslope.learners.policy_gradient import PolicyGradient
from upslope.learners.updates.decision_objective import DecisionObjective
from upslope.learners.updates.replay import Tape
from upslope.learners.updates.slicing import Share
from upslope.methods import catalogue, find
from upslope.objective.base import Regularizer, Weight
from upslope.objective.controller import TargetKL
from upslope.objective.estimator import annotate, bind, early_columns, slice_columns, stateful
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up

SIZE = 6


class Unseeing:
    """Stands for the policies a judge looks through: methods that look ahead are not among those tested here."""

    def before_update(self, method, rows):
        return rows


def decisions(method, seed=0):
    """A step's decisions in random order, each a row of its own, with the columns of several moving policies."""
    batch = random_batch(seed, groups=4, samples=4, dtype=torch.float32)
    states = {path: part.init() for path, part in stateful(method).items()}
    seen = annotate(method, bind(method, states, batch.replace(current=None)))
    chosen = seen.sampled.flatten().nonzero().squeeze(1)
    random = torch.Generator().manual_seed(seed)
    whole = seen.take_decisions(chosen[torch.randperm(len(chosen), generator=random)])
    names = {"logp", *slice_columns(method)}
    known = [name for name in batch.current.columns() if name in names]
    columns = [*known, *sorted(names - set(known))]  # those of a method's own heads and probes last
    moving = []
    for begin in range(0, len(chosen) - SIZE, SIZE):
        drift = {name: 0.3 * torch.randn(SIZE, 1, generator=random) - float(name == "logp") for name in columns}
        moving.append((Share(whole, begin, begin + SIZE), {name: column.numpy() for name, column in drift.items()}))
    return moving


def repeats(method) -> bool:
    """Goes through the shares of a step and checks each against the method as written; whether any was repeated."""
    judge = DecisionObjective(method, Unseeing(), slice_columns(method))
    for number, (share, columns) in enumerate(decisions(method)):
        slopes, told = judge(share, columns, number)
        plain = DecisionObjective(method, Unseeing(), slice_columns(method))
        plain._repeats = False
        expected, expected_told = plain(share, columns, number)
        assert list(slopes) == list(expected)
        for name in slopes:
            np.testing.assert_allclose(slopes[name], expected[name], rtol=2e-5, atol=1e-7, err_msg=name)
        for one, other in zip(told.entries, expected_told.entries, strict=True):
            assert one == other
        for one, other in zip(told.values, expected_told.values, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    return any(record.agreed for record in judge._records.values())


@pytest.mark.parametrize(
    "name",
    few_fast(
        name
        for name, method in catalogue().items()
        if method.learner == "policy-gradient"
        and not early_columns(method)
        # Who won is said of whole answers: such rows are never cut into decisions.
        and not any(need.startswith(("label.side", "signal.")) for need in method.needs())
    ),
)
def test_repeating_a_record_changes_no_number_of_any_method(name):
    repeated = repeats(find(name))
    if name in ("ppo", "bpo", "reinforce", "grpo", "dapo", "cispo"):
        assert repeated


@pytest.mark.parametrize(
    "knobs",
    [{"surrogate.dual": 3.0, "models.value.clip": 0.2, "regularize.weight": 0.01}, {"surrogate.high": 0.5}, {"shape": None}],
    ids=str,
)
def test_variants_of_ppo_are_repeated(knobs):
    method = find("ppo").derive(shape=None) if "shape" in knobs else find("ppo").with_knobs(knobs)
    assert repeats(method)


@dataclasses.dataclass(frozen=True)
class PastTorch(Weight):
    """Reads a number where no tape can see it."""

    def __call__(self, batch):
        return torch.full_like(batch.sampled, float(batch.advantage.numpy().max()))


@dataclasses.dataclass(frozen=True)
class Branching(Weight):
    def __call__(self, batch):
        return torch.full_like(batch.sampled, 2.0 if batch.advantage.max() > 0.5 else 1.0)


@pytest.mark.parametrize("weight", [PastTorch(), Branching()])
def test_what_depends_on_data_in_python_is_never_repeated(weight):
    assert not repeats(find("ppo").derive(weight=weight))


def record(function, *tensors):
    with Tape() as tape:
        found = function(*tensors)
    return tape.program(list(tensors), [found])


def test_a_program_holds_only_what_its_outputs_need():
    column, other = torch.randn(4, 1), torch.randn(4, 1)

    def function(a, b):
        b.exp().sum()
        return (a > 0).sum() + ((a > 0).float() * torch.ones_like(a)).sum()

    program = record(function, column, other)
    assert program.reads == [0]
    assert float(program(np.array([[1.0], [2.0], [-1.0], [3.0]], np.float32))[0]) == 6.0


def test_writing_in_place_is_followed_unless_somebody_else_looks_there():
    def alone(a):
        b = a * 2
        b.add_(1)
        return b * b

    def shared(a):
        b = a * 2
        view = b.view(2, 2)
        b.add_(1)
        return view.sum() + b.sum()

    column = torch.arange(4.0).view(4, 1)
    assert record(alone, column)(np.ones((4, 1), np.float32))[0].tolist() == [[9.0]] * 4
    assert record(shared, column) is None
    assert record(lambda a: a.mul_(2), column.clone()) is None


def test_kinds_of_numbers_stay_those_of_torch():
    whole, column = torch.tensor([[3], [4]]), torch.tensor([[0.5], [0.25]])
    program = record(lambda a, b: a * b, whole, column)
    found = program(np.array([[2], [2]]), np.array([[0.1], [0.2]], np.float32))[0]
    assert found.dtype == np.float32 and np.allclose(found, [[0.2], [0.4]])


def learner(knobs=None, method="ppo", task="gym:CartPole-v1", **settings):
    made = find(method) if isinstance(method, str) else method
    sizes = Settings(steps=2, envs=2, horizon=40, passes=3, minibatch=16, **settings)
    bench = set_up(made, task, "", sizes, knobs=knobs or {})
    return PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings)


@pytest.mark.parametrize("task", ["gym:CartPole-v1", "gym:Pendulum-v1"])
@pytest.mark.parametrize("method", ["ppo", "bpo"])
def test_a_step_with_records_is_the_step_without(task, method, monkeypatch):
    made = {}
    for repeat in (True, False):
        monkeypatch.setattr(DecisionObjective, "__init__", _repeating(DecisionObjective.__init__, repeat))
        running = learner(method=method, task=task)
        metrics = running.step(1)
        made[repeat] = running.policy.flat["policy"].detach().clone(), metrics
        monkeypatch.undo()
    (one, told), (other, plain) = made.values()
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert told.keys() == plain.keys()
    for name in told.keys() - {"seconds", "seconds_sampling", "tokens_per_second"}:
        assert told[name] == pytest.approx(plain[name], rel=1e-3, abs=1e-5), name


def _repeating(plain, repeat):
    def init(self, *arguments, **further):
        plain(self, *arguments, **further)
        self._repeats = self._repeats and repeat

    return init


def test_passes_still_end_on_what_an_update_showed():
    free = learner(lr=3e-2).step(1)
    bounded = learner(lr=3e-2, method=find("ppo").derive(controller=TargetKL(limit=0.001))).step(1)
    assert free["updates"] == 15 and 1 <= bounded["updates"] < 15
    assert bounded["kl_proximal"] > 0 and bounded["grad_norm"] > 0


@dataclass(frozen=True)
class Endless(Regularizer):
    def __call__(self, batch):
        return batch.current.logp * math.inf


def test_a_gradient_that_is_not_finite_moves_nothing():
    running = learner(method=find("ppo").derive(regularize=Endless(), on=()))
    start = running.policy.flat["policy"].detach().clone()
    with pytest.raises(NonFinite, match="step 1: the gradient was not finite in 5 updates in a row"):
        running.step(1)
    assert torch.equal(running.policy.flat["policy"], start)
