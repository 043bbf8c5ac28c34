"""Knobs moved on a schedule."""

import pytest

from upslope.errors import MethodError
from upslope.methods import find
from upslope.objective.controller.schedule import LinearSchedule


def test_knobs_move_linearly():
    schedule = LinearSchedule(("advantage.gamma",), start=1.0, end=0.5)
    assert [schedule.knobs({}, share)["advantage.gamma"] for share in (0.0, 0.5, 1.0)] == [1.0, 0.75, 0.5]
    moved = find("ppo").with_knobs({"controller": "LinearSchedule"}).with_knobs(LinearSchedule().knobs({}, 0.5))
    assert moved.surrogate.low == moved.surrogate.high == pytest.approx(0.1)


def test_nothing_to_move_is_refused():
    with pytest.raises(MethodError, match="moves"):
        LinearSchedule(())
