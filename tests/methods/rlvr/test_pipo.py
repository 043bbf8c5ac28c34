"""PIPO: progress by hand, attributions, the repeated update, and a state that survives a stop."""

from __future__ import annotations

import dataclasses
import math
import sys

import numpy as np
import pytest
import torch
from batches import assert_same, gradient, random_batch
from carried import assert_carries_over
from places import ROOT
from small_learner import SIZES, learner, weights

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.advantage.attribution import Attribution
from upslope.objective.data.previous import PreviousStep
from upslope.objective.estimator import annotate, begin_update, decision_losses
from upslope.objective.surrogate.previous import PreviousClip
from upslope.types import Batch, View

pipo, grpo = find("pipo"), find("grpo")
SETTINGS = dataclasses.replace(SIZES, lr=3e-3, updates_per_step=2)


def judged(batch: Batch, progress: float, scale: float = 1.0) -> Batch:
    """The batch as rows of the last step, with GRPO's advantage, under this progress."""
    seen = annotate(grpo, batch)
    told = {"progress": torch.full_like(batch.reward, progress), "progress_scale": torch.full_like(batch.reward, scale)}
    return seen.replace(signal=told)


@pytest.mark.checks("identity", "pipo")
def test_without_rows_of_the_last_step_it_is_grpo(ragged_batch: Batch):
    assert_same(gradient(pipo, ragged_batch), gradient(grpo, ragged_batch), exact=True)


@pytest.mark.checks("identity", "pipo")
@pytest.mark.parametrize("knobs", [{"data.window": 9}, {"data.window": 1, "data.dead_zone": 1e9}])
def test_without_progress_a_run_is_grpos(knobs: dict):
    made = [learner(method, SETTINGS) for method in (pipo.with_knobs(knobs), grpo)]
    for step in (1, 2, 3):
        told = [each.step(step) for each in made]
        assert not any(name.startswith("previous_") for name in told[0])
    assert weights(made[0]).equal(weights(made[1]))


@pytest.mark.checks("oracle", "pipo", by="hand-worked numbers")
def test_progress_by_hand():
    known = [0.1, 0.2, 0.3, 0.4]  # mean 0.25, population spread sqrt(0.0125)
    part = PreviousStep(window=4)
    assert part.progress(known, 0.5) == pytest.approx(0.25 / math.sqrt(0.0125))
    assert part.progress(known, 0.2) == pytest.approx(-0.05 / math.sqrt(0.0125))
    assert part.progress([0.9, *known], 0.5) == part.progress(known, 0.5), "only the window counts"
    assert part.progress(known[:3], 0.5) == 0 and part.progress([0.3] * 4, 0.5) == pytest.approx(0.2), "a spread of 0 counts as 1"
    # Released: the mean itself enters first, so 0.2 to 0.5 are compared with: mean 0.35, the same spread.
    assert PreviousStep(window=4, counts_current=True).progress(known, 0.5) == pytest.approx(0.15 / math.sqrt(0.0125))
    assert PreviousStep(window=4, counts_current=True).progress(known[:3], 0.4) != 0
    assert PreviousStep(window=4, gate=2.0).progress(known, 0.5) == 2.0
    assert PreviousStep(window=4, limit=0.1).progress(known, 0.5) == pytest.approx(0.1 / math.sqrt(0.0125))
    assert PreviousStep(window=4, dead_zone=0.5).progress(known, 0.2) == 0


@pytest.mark.checks("oracle", "pipo", by="hand-worked numbers")
def test_attribution_by_hand():
    """Advantages 1.5, -0.5, -0.5, -0.5 have absolute sum 3: the shares are 4 A / 3 = 2 and -2/3; half of that is progress 0.5."""
    batch = random_batch(seed=0, groups=1, samples=4, ragged=False)
    old = torch.tensor([1.5, -0.5, -0.5, -0.5], dtype=torch.float64)
    batch = judged(batch, 0.5).replace(advantage=batch.per_decision(old))
    found = Attribution(eps=0.0)(batch)
    torch.testing.assert_close(found[:, 0], torch.tensor([1.0, -1 / 3, -1 / 3, -1 / 3], dtype=torch.float64))
    assert Attribution(eps=0.0, limit=0.5)(batch)[0, 0] == 0.5
    late = batch.replace(signal={**batch.signal, "progress_scale": torch.full_like(batch.reward, 0.1)})
    assert Attribution(eps=0.0, limit=0.5)(late)[0, 0] == pytest.approx(0.05), "scaled after the bound"
    torch.testing.assert_close(Attribution(by="token")(batch), batch.advantage * 0.5)


@pytest.mark.checks("identity", "pipo")
@pytest.mark.parametrize("progress", [0.7, -0.3])
def test_absolute_attributions_of_a_group_sum_to_its_size_times_progress(ragged_batch: Batch, progress: float):
    batch = judged(ragged_batch, progress)
    row = batch.row_mean(Attribution(eps=0.0)(batch))
    for name in batch.group.unique():
        assert row[batch.group == name].abs().sum().item() == pytest.approx(4 * abs(progress))


@pytest.mark.checks("oracle", "pipo", by="the released loss, written out")
def test_the_upper_form_is_the_released_loss(ragged_batch: Batch):
    term = dict(pipo.terms)["previous"]
    own = dataclasses.replace(term, surrogate=PreviousClip(form="upper")).as_method("previous", pipo)
    batch = annotate(own, judged(ragged_batch, -1.3, 0.1))
    losses, _ = decision_losses(own, begin_update(own, batch))
    expected = 0.0
    rows = [row for row in range(batch.rows) if batch.sampled[row].any()]
    for row in rows:
        mates = batch.group == batch.group[row]
        old = annotate(grpo, ragged_batch).advantage
        means = (old * batch.sampled).sum(1) / batch.sampled.sum(1).clamp_min(1)
        share = max(min(4 * means[row] / (means[mates].abs().sum() + 1e-6) * -1.3, 10), -10)
        ratio = (batch.current.logp[row] - batch.behavior.logp[row]).exp()
        each = -torch.minimum(ratio, ratio.clamp(0.8, 1.2)) * share * 0.1
        expected += (each * batch.sampled[row]).sum() / batch.sampled[row].sum() / len(rows)
    torch.testing.assert_close(losses.sum(), expected)


def test_the_last_steps_rows_are_learned_from_once_more_and_first():
    made = learner(pipo.with_knobs({"data.window": 1}), SETTINGS)
    first = made.step(1)
    state = made.states["data.0"]
    assert state["means"] == [first["reward"]] and "previous_loss" not in first
    kept = state["rows"]
    assert "proximal" not in kept and kept["advantage"].equal(made.last.advantage)
    start, told = weights(made), made.step(2)
    progress = told["reward"] - first["reward"]
    assert progress != 0 and told["previous_grad_norm"] > 0 and told["updates"] == 2
    # One more update than GRPO makes in the step: the optimiser has counted it.
    assert next(iter(made.optimizer.state.values()))["step"] == 2 + 3
    aside = made.last.aside["previous"]
    phi = progress if progress > 0 else 0.1 * progress
    torch.testing.assert_close(aside.signal["progress"], torch.full_like(aside.reward, phi))
    assert aside.behavior.logp.equal(View.of(kept["behavior"]).logp) and not weights(made).equal(start)


@pytest.mark.parametrize("lam", [0.0, 0.1])
def test_a_fall_is_turned_back_by_lam_alone(lam: float):
    made = learner(pipo.with_knobs({"data.window": 1, "data.lam": lam}), SETTINGS)
    made.step(1)
    made.states["data.0"]["means"] = [2.0]  # no reward here reaches that
    told = made.step(2)
    assert ("previous_loss" in told) == (lam > 0)


def test_a_stop_changes_nothing_while_rows_are_carried_over(tmp_path):
    whole = assert_carries_over(pipo.with_knobs({"data.window": 1}), SETTINGS, tmp_path, steps=4, stop=2)
    assert whole.last.aside


def test_nonsense_is_refused():
    for wrong in ({"window": 0}, {"lam": -1.0}, {"gate": math.nan}):
        with pytest.raises(MethodError, match="PreviousStep"):
            PreviousStep(**wrong)
    with pytest.raises(MethodError, match="PreviousStep"):
        Attribution()(random_batch(seed=0))


def test_the_steps_own_ratio_is_to_the_policy_before_the_repeated_update():
    sys.path.insert(0, str(ROOT / "bench" / "claims"))
    from beds import GoodArms, TableBed, train_table

    run = train_table("pipo", TableBed(GoodArms(), known=0.2), steps=12, lr=0.1, seed=0, knobs={"data.window": 2})
    repeated = ~np.isnan(run.curve("previous_grad_norm"))
    assert repeated.any() and not repeated.all()
    moved = run.curve("log_ratio") > 0  # one update a step: without the repeated one it begins where it sampled
    assert (moved == repeated).all()
