"""Terms that learn in the step's own updates: one gradient, the sum of both losses', however the step is cut."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from small_learner import SIZES, learner, weights

from upslope.learners.updates.rows import RowUpdater
from upslope.methods import find
from upslope.objective.advantage import RawReward
from upslope.objective.aggregate import SequenceMeanTokenMean, TokenMean
from upslope.objective.base import Data, DataContext, Filter, Weight
from upslope.objective.ratio import NoRatio
from upslope.objective.surrogate import LogLikelihood
from upslope.objective.terms import Term
from upslope.types import Batch, Trajectories


@dataclass(frozen=True)
class Demonstrations(Data):
    """The reference answer of every group, aside."""

    every: int = 1

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        taught = context.teacher(rows)
        return rows.replace(aside={**rows.aside, "demonstrations": taught.take_rows(torch.arange(taught.rows) % self.every == 0)})


@dataclass(frozen=True)
class Drop(Filter):
    """Drops the first groups."""

    groups: int = 0
    late = False
    refill: bool = False
    rounds: int = 1

    def __call__(self, batch: Batch) -> torch.Tensor:
        return batch.group >= batch.group.unique()[self.groups - 1] + 1 if self.groups else batch.group >= 0


@dataclass(frozen=True)
class Half(Weight):
    """Everything counts half."""

    def __call__(self, batch: Batch) -> torch.Tensor:
        return torch.full_like(batch.sampled, 0.5)


GRPO = find("dr-grpo")


def supervised(**changes) -> Term:
    parts = {"advantage": RawReward(), "ratio": NoRatio(), "surrogate": LogLikelihood(), "aggregate": TokenMean(), "when": "with"}
    return Term(source="demonstrations", **{**parts, **changes})


def with_term(method=GRPO, **changes):
    return method.derive(name="mine", data=Demonstrations(), terms={"taught": supervised(**changes)})


def gradient(method, settings=SIZES, budget=100_000) -> torch.Tensor:
    """The gradients of a step's updates, one after the other."""
    made = learner(method, settings)
    made.policy.token_budget = lambda: budget
    found = []

    def apply(norm, sums):
        found.append(torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten().clone() for p in everything]))
        return True

    everything = made.optimizer_step.parameters()
    made.optimizer_step.apply = apply  # type: ignore[method-assign]
    made.step(1)
    return torch.stack(found)


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("budget", [100_000, 40])
def test_the_gradient_is_the_sum_of_both(scale: float, budget: int):
    both = gradient(with_term(scale=scale), budget=budget)
    own = gradient(GRPO)
    taught = gradient(with_term(GRPO.derive(name="none", filter=Drop(groups=4))))
    assert own.abs().max() > 0 and taught.abs().max() > 0
    torch.testing.assert_close(both, own + scale * taught, rtol=1e-4, atol=1e-7)


def test_a_terms_own_weights_multiply_its_loss():
    torch.testing.assert_close(
        gradient(with_term(GRPO.derive(name="none", filter=Drop(groups=4)), weight=(Half(),))),
        gradient(with_term(GRPO.derive(name="none", filter=Drop(groups=4)), scale=0.5)),
    )


def test_a_demonstration_goes_with_the_update_its_group_was_dealt_to(monkeypatch):
    seen = []
    plain = RowUpdater.update

    def update(self, share, number, sums, trace=None):
        seen.append((set(share.group.tolist()), {name: set(rows.group.tolist()) for name, rows in share.aside.items()}))
        plain(self, share, number, sums, trace)

    monkeypatch.setattr(RowUpdater, "update", update)
    learner(with_term(), dataclasses.replace(SIZES, updates_per_step=2)).step(1)
    assert len(seen) == 2 and all(len(own) == 2 and beside == {"taught": own} for own, beside in seen)


def test_a_group_that_a_filter_drops_keeps_its_place(monkeypatch):
    """Which groups share an update does not depend on which are kept, and one of which only a term is left still learns."""
    dealt = {}
    plain = RowUpdater.update
    for dropped in (0, 3, 4):
        seen = dealt[dropped] = []

        def update(self, share, number, sums, trace=None, seen=seen):
            seen.append(({*share.aside["taught"].group.tolist()}, share.rows))
            plain(self, share, number, sums, trace)

        monkeypatch.setattr(RowUpdater, "update", update)
        made = learner(
            with_term(GRPO.derive(name="none", filter=Drop(groups=dropped))), dataclasses.replace(SIZES, updates_per_step=2)
        )
        start, told = weights(made), made.step(1)
        assert told["updates"] == 2 and not weights(made).equal(start) and "empty_updates" not in told
        assert told["taught_loss"] > 0 and told["kept_rows"] == 1 - dropped / 4
    assert [groups for groups, _ in dealt[0]] == [groups for groups, _ in dealt[3]] == [groups for groups, _ in dealt[4]]
    assert sorted(rows for _, rows in dealt[3]) == [0, 4] and [rows for _, rows in dealt[4]] == [0, 0]


def test_its_means_are_over_its_own_rows_alone():
    """Twice as many sampled rows beside them change nothing of what demonstrations teach."""
    only = GRPO.derive(name="none", filter=Drop(groups=4))
    few = gradient(with_term(only, aggregate=SequenceMeanTokenMean()))
    many = gradient(with_term(only, aggregate=SequenceMeanTokenMean()), dataclasses.replace(SIZES, samples_per_task=8))
    torch.testing.assert_close(few, many, rtol=1e-4, atol=1e-8)


def test_without_rows_of_the_term_the_step_is_as_it_was():
    alone = gradient(GRPO, dataclasses.replace(SIZES, updates_per_step=2))
    nobody = GRPO.derive(name="mine", terms={"taught": supervised()})
    torch.testing.assert_close(alone, gradient(nobody, dataclasses.replace(SIZES, updates_per_step=2)), rtol=0, atol=0)


def test_several_updates_measure_the_ratio_against_the_policy_of_the_steps_beginning():
    from upslope.objective.ratio import TokenRatio
    from upslope.objective.surrogate import PessimisticClip

    settings = dataclasses.replace(SIZES, passes=3, lr=1e-2)
    told = learner(with_term(ratio=TokenRatio(), surrogate=PessimisticClip()), settings).step(1)
    assert told["taught_log_ratio"] > 0 and told["taught_kl_proximal"] > 0
