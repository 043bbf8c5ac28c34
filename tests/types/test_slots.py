"""Slots are typed: a part that does not belong is refused where the method is made, with what stands there and what would fit."""

from __future__ import annotations

import dataclasses

import pytest

from upslope.errors import MethodError
from upslope.methods import catalogue
from upslope.objective.advantage import GroupBaseline
from upslope.objective.aggregate import TokenMean
from upslope.objective.models import ValueFunction
from upslope.objective.surrogate.clip import PessimisticClip
from upslope.objective.weight.selection import TopEntropy
from upslope.types import (
    NAMED_SLOTS,
    OPTIONAL_SLOTS,
    ORDERED_SLOTS,
    SINGLE_SLOTS,
    SLOT_CLASSES,
    SLOTS,
    STACKED_SLOTS,
    Method,
    Paper,
)

GRPO = catalogue()["grpo"]


@pytest.mark.parametrize(
    ("slot", "value", "says"),
    [
        ("aggregate", GroupBaseline(), r"aggregate of grpo is GroupBaseline\(.*which is for the slot 'advantage'. It takes a part "
                                       r"that derives from Aggregate: .*TokenMean"),
        ("advantage", TokenMean(), r"advantage of grpo is TokenMean\(\), which is for the slot 'aggregate'"),
        ("weight", "TopEntropy", r"weight.0 of grpo is 'TopEntropy'.*which is no part. It takes a part that derives from Weight"),
        ("weight", (TopEntropy(), PessimisticClip()), r"weight.1 of grpo is PessimisticClip\(.*for the slot 'surrogate'"),
        ("models", {"value": TokenMean()}, r"models.value of grpo is TokenMean\(\)"),
        ("models", ValueFunction(), "a mapping of names is wanted"),
        ("filter", lambda batch: batch, "filter.0 of grpo is .*which is no part"),
        ("rollout", 3, "rollout of grpo is 3"),
        ("aggregate", TokenMean, r"which is no part; write TokenMean\(\)"),
    ],
)  # fmt: skip
def test_a_part_in_the_wrong_slot_is_refused_on_construction(slot, value, says):
    with pytest.raises(MethodError, match=says):
        GRPO.derive(**{slot: value})


def test_a_slot_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(MethodError, match=r"a method has no slot 'agregate'. Did you mean 'aggregate'"):
        GRPO.derive(agregate=TokenMean())


def test_a_model_may_stand_among_the_regularizers_as_it_is_one():
    assert GRPO.derive(regularize=ValueFunction()).regularize == (ValueFunction(),)


def test_every_slot_has_a_class_and_a_form():
    assert tuple(SLOT_CLASSES) == SLOTS
    assert sorted(SINGLE_SLOTS + OPTIONAL_SLOTS + STACKED_SLOTS + NAMED_SLOTS + ORDERED_SLOTS) == sorted(SLOTS)
    assert {f.name for f in dataclasses.fields(Method)} >= set(SLOTS)


def test_slots_bring_what_they_are_given_to_one_form():
    method = Method(name="m", paper=Paper("p", 2020), weight=TopEntropy(), models={"b": ValueFunction(), "a": ValueFunction()})
    assert method.weight == (TopEntropy(),) and method.filter == () and [name for name, _ in method.models] == ["a", "b"]
    assert method.derive(weight=[TopEntropy(), TopEntropy()]).weight == (TopEntropy(), TopEntropy())
    assert method.derive(weight=None).weight == () and dataclasses.replace(method).weight == method.weight
    assert method == Method(name="m", paper=Paper("p", 2020), weight=(TopEntropy(),), models=method.models) and hash(method)
    assert method.derive(on={"text": {"weight.fraction": 0.5}}).on == (("text", (("weight.fraction", 0.5),)),)
