"""Values that rewards and discount cannot explain end a run; values that they can do not."""

from __future__ import annotations

import pytest

from upslope.learners.nonfinite import NonFinite
from upslope.learners.value_guard import check_values
from upslope.methods import find


@pytest.mark.parametrize("value", [1e4, -1e4, float("nan"), float("inf")])
def test_what_no_return_can_be_is_told_with_metric_and_knob(value: float):
    with pytest.raises(NonFinite, match=r"step 7: q_value is .*rewards of at most 2 and a discount of 0.9 no return is above 20"):
        check_values(find("td3"), {"q_value": value}, 2.0, 0.9, 7)


def test_what_a_return_can_be_passes():
    for name, metrics in (("td3", {"q_value": -55.0}), ("sac", {"q_value": 250.0, "temperature": 2.0, "entropy": 5.0}), ("bc", {})):
        check_values(find(name), metrics, 2.0, 0.9, 1)
    check_values(find("td3"), {"q_value": 1000.0}, 1.0, 1.0, 1)


def test_the_cure_is_that_of_the_method():
    for name, says in (("td3", "td3-bc, iql, cql"), ("td3-bc", "stronger pull to the data")):
        with pytest.raises(NonFinite) as stopped:
            check_values(find(name), {"q_value": 1e6}, 1.0, 0.9, 1)
        assert says in f"{stopped.value} {vars(stopped.value)}"
