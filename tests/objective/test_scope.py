"""One meaning of scope: what a call must see at once. Whoever says so, by the class or by the hook, is held to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from batches import CUTS, gradient, random_batch
from torch import Tensor

from upslope.errors import MethodError
from upslope.methods import catalogue
from upslope.objective.base import Aggregate, Branch, Notes, Regularizer, Shape, Surrogate, Weight
from upslope.objective.estimator import check, early_columns, slice_columns, slice_scope
from upslope.objective.ratio import SequenceRatio
from upslope.report.describe import when
from upslope.types import Batch, Scope

GRPO = catalogue()["grpo"]


@dataclass(frozen=True)
class AboveMean(Weight):
    """Twice the weight above the mean entropy: of the row, of the group or of the whole update, as the knob says."""

    over: Literal["sequence", "group", "update"] = "update"

    def needs(self) -> frozenset[str]:
        return frozenset({"proximal.entropy"})

    def seen_at_once(self) -> Scope:
        return self.over

    def __call__(self, batch: Batch) -> Tensor:
        assert batch.proximal is not None and batch.proximal.entropy is not None
        entropy, on = batch.proximal.entropy, batch.sampled
        if self.over == "sequence":
            mean = batch.row_mean(entropy).unsqueeze(1)
        elif self.over == "group":
            index, groups = batch.group_index()
            total = torch.zeros(groups, dtype=entropy.dtype).index_add_(0, index, (entropy * on).sum(1))
            count = torch.zeros(groups, dtype=entropy.dtype).index_add_(0, index, on.sum(1))
            mean = (total / count.clamp_min(1))[index].unsqueeze(1)
        else:
            mean = (entropy * on).sum() / on.sum().clamp_min(1)
        return 1 + (entropy > mean).to(entropy.dtype)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("over", ["sequence", "group", "update"])
def test_a_weight_whose_scope_depends_on_a_knob_ignores_how_an_update_is_cut(over, cut):
    method = GRPO.derive(name="mine", weight=AboveMean(over))
    check(method)
    whole, found = (gradient(method, random_batch(3), how) for how in ("whole", cut))
    torch.testing.assert_close(found.logp, whole.logp)
    assert (gradient(GRPO, random_batch(3)).logp - whole.logp).abs().max() > 1e-3, "the weight does something"


def test_scopes_widen_slices_by_the_hook_too():
    assert slice_scope(GRPO.derive(weight=AboveMean("group"))) == "group"
    assert slice_scope(GRPO.derive(weight=AboveMean("sequence"))) == "sequence"
    assert slice_scope(GRPO.derive(weight=AboveMean("update"))) == slice_scope(GRPO) == "decision"


@dataclass(frozen=True)
class WholeUpdate(Surrogate):
    scope = "update"

    def __call__(self, batch: Batch, branches: tuple[Branch, ...]) -> tuple[Tensor, Notes]:
        raise AssertionError


@dataclass(frozen=True)
class WholeStep(Regularizer):
    def seen_at_once(self) -> Scope:
        return "step"


@dataclass(frozen=True)
class RowShape(Shape):
    scope = "sequence"


@dataclass(frozen=True)
class RowAggregate(Aggregate):
    scope = "sequence"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"surrogate": WholeUpdate()}, "surrogate is a WholeUpdate of scope 'update'.*computes in `prepare`"),
        ({"regularize": WholeStep()}, "regularize.0 is a WholeStep of scope 'step'.*'decision', 'segment', 'sequence', 'group'"),
        ({"shape": RowShape()}, "shape.0 is a RowShape of scope 'sequence'; there it is one of 'step', 'update'"),
        ({"aggregate": RowAggregate()}, "aggregate is a RowAggregate of scope 'sequence'"),
    ],
)
def test_a_scope_that_a_slot_cannot_serve_is_refused(changes, says):
    with pytest.raises(MethodError, match=says):
        check(GRPO.derive(**changes))


def test_show_says_when_a_part_runs():
    found = {
        name: when(part)
        for name, part in (
            ("weight", AboveMean("group")),
            ("sequence", SequenceRatio()),
            ("prepared", catalogue()["bapo"].surrogate),
            ("off", catalogue()["bapo"].with_knobs({"surrogate.target": 0}).surrogate),
            ("segment", catalogue()["rank-grpo"].ratio),
        )
    }
    assert found == {
        "weight": "per group",
        "sequence": "per sequence",
        "prepared": "per decision, prepared once an update",
        "off": "per decision",
        "segment": "per segment",
    }


def test_what_prepare_reads_of_the_current_policy_is_computed_ahead_and_not_in_slices():
    bapo, capo = catalogue()["bapo"], catalogue()["capo"]
    assert early_columns(bapo) == {"logp"} and not slice_columns(bapo)
    assert early_columns(capo) and not early_columns(capo) & slice_columns(capo), "a weight of the whole update reads no slice"
