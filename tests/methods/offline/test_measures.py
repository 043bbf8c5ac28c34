"""Papers that train nothing are found and shown, and refused where something is to be trained."""

import pytest

import upslope as up
from upslope.errors import MethodError
from upslope.methods import catalogue, find, measures
from upslope.report.describe import show_text


def test_measures_are_found_and_stand_apart_from_what_can_be_trained():
    assert set(measures()) == {"saco-tq", "il-data-quality"}
    assert not set(measures()) & set(catalogue())
    assert find("saco-tq").paper.year == 2021 and not find("saco-tq").parts()


@pytest.mark.parametrize("name", ["saco-tq", "il-data-quality"])
def test_a_measure_is_shown_and_cannot_be_trained(name, tmp_path):
    assert "trains nothing" in show_text(find(name))
    with pytest.raises(MethodError, match=r"measures data and trains nothing. 'upslope data describe NAME'"):
        up.train(name, "gym:Pendulum-v1", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
