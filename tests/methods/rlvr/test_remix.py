"""ReMix: the shifted window, the two anchors, the two lives and what is replayed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batches import assert_same, gradient, random_batch, replace_view
from carried import assert_carries_over
from small_learner import SIZES, learner, weights

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.base import Branch
from upslope.objective.controller.reincarnation import Reincarnation
from upslope.objective.data.replay import Replay
from upslope.objective.ratio import TokenRatio
from upslope.objective.regularize import ReferenceKL
from upslope.objective.regularize.convex import ConvexKL
from upslope.objective.surrogate import PessimisticClip
from upslope.objective.surrogate.shifted import ShiftedClip
from upslope.types import Batch, Source, View

remix, grpo = find("remix"), find("grpo")
SETTINGS = dataclasses.replace(SIZES, lr=3e-3, passes=2)


def sampled_by_itself(batch: Batch) -> Batch:
    """Nothing is replayed: who sampled is the policy as the step began."""
    return batch.replace(behavior=View(batch.proximal.logp))


@pytest.mark.checks("identity", "remix")
def test_on_fresh_rows_with_the_start_as_only_anchor_it_is_grpo(ragged_batch: Batch):
    batch = sampled_by_itself(ragged_batch)
    assert_same(gradient(remix, batch), gradient(grpo, batch), rtol=1e-12)


@pytest.mark.checks("identity", "remix")
def test_where_the_sampler_began_the_step_the_window_is_ppos(ragged_batch: Batch):
    batch = sampled_by_itself(ragged_batch)
    ours = grpo.derive(ratio=remix.ratio, surrogate=ShiftedClip(0.1, 0.3))
    theirs = grpo.derive(ratio=TokenRatio(), surrogate=PessimisticClip(0.1, 0.3))
    assert_same(gradient(ours, batch), gradient(theirs, batch), rtol=1e-12)


@pytest.mark.checks("identity", "remix")
def test_with_nothing_replayed_a_run_is_grpos():
    """To rounding: the engine that samples and the learner add in another order."""
    made = [learner(method, SETTINGS) for method in (remix.with_knobs({"data.fraction": 0.0}), grpo)]
    start = weights(made[0])
    for step in (1, 2):
        told = [each.step(step) for each in made]
        assert told[0]["kept_rows"] == told[1]["kept_rows"] == 1
        assert made[0].last.rows == made[1].last.rows
    moved = [weights(each) - start for each in made]
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > 0.999


@pytest.mark.checks("oracle", "remix", by="hand-worked numbers")
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.8, 1.0, -1.7, 0.0),  # above c + 0.2: bounded
        (1.6, 1.0, -1.6, -1.0),
        (1.2, 1.0, -1.2, -1.0),  # below c - 0.2, and good: free to come back
        (1.2, -1.0, 1.3, 0.0),  # below c - 0.2, and bad: bounded
        (1.8, -1.0, 1.8, 1.0),
    ],
)
def test_the_window_stands_around_where_the_step_began(ratio: float, advantage: float, loss: float, slope: float):
    batch = random_batch(seed=0, groups=1, samples=1, positions=1, ragged=False)
    value = torch.full_like(batch.sampled, ratio).requires_grad_()
    centre = torch.full_like(batch.sampled, 1.5)
    branches = (Branch("token", value.log(), value), Branch("centre", centre.log(), centre, 0.0))
    found, notes = ShiftedClip()(batch.replace(advantage=torch.full_like(batch.sampled, advantage)), branches)
    (grad,) = torch.autograd.grad(found.sum(), value)
    assert found.item() == pytest.approx(loss) and grad.item() == pytest.approx(slope)
    assert (slope == 0) == bool(notes["clipped_high"].any() or notes["clipped_low"].any())


def test_a_row_that_is_already_far_from_its_sampler_still_learns():
    batch = random_batch(seed=1, drift=0.0).replace(behavior=View(random_batch(seed=1).proximal.logp - 0.7))
    batch = replace_view(batch, "current", logp=batch.proximal.logp.clone().requires_grad_())
    old = grpo.derive(ratio=TokenRatio(against="behavior"), regularize=None)
    good = gradient(old.derive(ratio=remix.ratio, surrogate=ShiftedClip()), batch).logp
    assert (gradient(old, batch).logp[batch.sampled > 0] == 0).any() and (good[batch.sampled > 0] != 0).all()


@pytest.mark.checks("oracle", "remix", by="hand-worked numbers")
def test_the_starts_share_over_the_run():
    part = Reincarnation()
    assert [part.share(step) for step in (1, 50, 101, 200)] == [1.0] * 4
    assert [part.share(step) for step in (51, 60, 61, 71, 81, 91, 100)] == pytest.approx([0.9, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5])
    assert part.knobs({"steps": 99}, 0.5) == {"regularize.share": 0.5}
    assert part.knobs({"steps": 100}, 0.5) == {"regularize.share": 1.0, "data.fraction": 0.0}
    assert part.snapshots({"steps": 100}, 0.5) == ("start",) and not part.snapshots({"steps": 101}, 0.5)


@pytest.mark.checks("identity", "remix")
def test_two_anchors_are_a_convex_mix(ragged_batch: Batch):
    other = View(ragged_batch.proximal.logp - 0.3)
    batch = ragged_batch.replace(reference={**ragged_batch.reference, "previous": other})
    start, previous = (ReferenceKL(weight=0.1, reference=name)(batch) for name in ("start", "previous"))
    torch.testing.assert_close(ConvexKL(weight=0.1, share=0.7)(batch), 0.7 * start + 0.3 * previous)
    assert ConvexKL(weight=0.1)(batch).equal(start) and ConvexKL(share=1.0).needs() == {"reference.start.logp"}
    assert ConvexKL(share=0.0).needs() == {"reference.previous.logp"} and not ConvexKL(weight=0.0).needs()


def test_a_share_of_the_batch_is_older():
    made = learner(remix.with_knobs({"data.fraction": 0.5}), SETTINGS)
    made.step(1)
    first = made.last
    assert first.group_index()[1] == 4 and bool(first.fresh().all())
    told = made.step(2)
    rows = made.last
    old = rows.label["source"] == Source.REPLAYED
    assert rows.group_index()[1] == 8 and int(old.sum()) == int(rows.fresh().sum()) == 16
    assert len(rows.info) == rows.rows and told["kept_rows"] == 1 and told["tokens"] == rows.sampled[~old].sum()
    # All four groups of the first step, with the log-probabilities of then and so the same advantages.
    order = torch.cat([(first.task == task).nonzero().squeeze(1) for task in rows.task[old].unique_consecutive()])
    width = first.sampled.shape[1]
    assert rows.behavior.logp[old][:, :width].equal(first.behavior.logp[order])
    torch.testing.assert_close(rows.advantage[old][:, :width], first.advantage[order])
    assert not torch.allclose(rows.proximal.logp[old][:, :width], first.proximal.logp[order], atol=1e-4), "seen anew"
    assert [note["response"] for note in rows.info][16:] == [first.info[row]["response"] for row in order.tolist()]


def test_every_age_is_as_likely_as_any_other():
    batch, part = random_batch(seed=0), Replay()
    groups = [torch.arange(2), torch.arange(10, 18)]
    drawn = torch.cat([part._drawn(batch.replace(key=batch.key + step), groups, 1) for step in range(2000)])
    # 2000 draws with chance a half: a share within 0.04 is 3.6 standard errors.
    assert abs((drawn >= 10).double().mean() - 0.5) < 0.04 and len(drawn.unique()) == 10
    assert len(part._drawn(batch, groups, 99).unique()) == 10, "each at most once"


def test_the_second_life_begins_from_the_policy_reached():
    made = learner(remix.with_knobs({"controller.until": 2, "data.fraction": 0.5}), SETTINGS)
    made.step(1)
    made.step(2)
    reached = {name: tensor.clone() for name, tensor in made.policy.weights().items()}
    told = made.step(3)
    assert all(tensor.equal(reached[name]) for name, tensor in made.references.start.weights().items())
    assert told["kl_start"] == pytest.approx(0, abs=1e-5) and bool(made.last.fresh().all())
    assert made.states["data.0"] == {"steps": []}


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_stop_changes_nothing_before_and_after_the_switch(stop: int, tmp_path):
    knobs = {"controller.until": 2, "controller.hold": 0, "controller.every": 1, "data.fraction": 0.5}
    assert_carries_over(remix.with_knobs(knobs), SETTINGS, tmp_path, steps=4, stop=stop)


def test_the_anchor_one_step_behind_is_the_policy_before_the_last_step():
    made = learner(remix.with_knobs({"controller.hold": 0, "controller.every": 1}), SETTINGS)
    before = []
    for step in (1, 2, 3):
        before.append({name: tensor.clone() for name, tensor in made.policy.weights().items()})
        made.step(step)
    assert all(tensor.equal(before[1][name]) for name, tensor in made.references.kept["previous"][0].weights().items())
    assert "previous" in made.last.reference


def test_nonsense_is_refused():
    for part, wrong in (
        (Replay, {"fraction": 1.0}),
        (Replay, {"window": 0}),
        (ConvexKL, {"share": 1.5}),
        (Reincarnation, {"every": 0}),
    ):
        with pytest.raises(MethodError, match=part.__name__):
            part(**wrong)
