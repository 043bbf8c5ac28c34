"""What the last step's rows are judged by, where nobody measured the reward."""

from __future__ import annotations

import pytest
from part_values import steps

from upslope.objective.data.previous import PreviousStep


def test_without_a_measured_reward_it_is_the_mean_of_the_rows():
    part, rows = PreviousStep(window=2), steps()[0][0]
    state = part.update(part.init(), rows, {})
    assert state["means"] == [pytest.approx(rows.reward.mean().item())] and state["rows"] == {}
    for reward in (0.25, 0.5):
        state = part.update(state, rows.replace(advantage=rows.sampled), {"reward": reward})
    assert state["means"] == [0.25, 0.5] and len(state["rows"]["reward"]) == 12
