"""Parts that lack what they need, or are given what cannot be, say so."""

from __future__ import annotations

import pytest

from upslope.errors import MethodError
from upslope.objective.aggregate import ConstantLength
from upslope.objective.ratio import EntropyMix
from upslope.objective.weight import TopEntropy
from upslope.types import Batch


def test_parts_without_what_they_need_say_so(ragged_batch: Batch):
    for make, says in (
        (lambda: EntropyMix(over="batch", source="current"), "over the batch"),
        (lambda: EntropyMix(direction=0), "direction is 0"),
        (lambda: TopEntropy(fraction=0.0), "fraction is 0"),
        (lambda: ConstantLength()(ragged_batch.replace(horizon=0)), r"set aggregate\.length"),
    ):
        with pytest.raises(MethodError, match=says):
            make()
