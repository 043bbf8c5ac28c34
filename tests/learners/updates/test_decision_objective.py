"""Which updates on decisions may be recorded and repeated."""

from __future__ import annotations

import pytest

from upslope.learners.updates.decision_objective import DecisionObjective
from upslope.methods import catalogue, find
from upslope.objective.estimator import early_columns, slice_columns

DRAWING = next(name for name, method in catalogue().items() if "key" in method.needs() and not early_columns(method))
LOOKING_AHEAD = next(name for name, method in catalogue().items() if early_columns(method) and "key" not in method.needs())


@pytest.mark.parametrize(
    ("name", "replays", "repeats"),
    [
        ("ppo", True, True),
        ("ppo", False, False),  # --plain
        (DRAWING, True, False),  # other random numbers in every update
        (DRAWING, False, False),
        (LOOKING_AHEAD, True, False),  # another column of the current policy in every update
        (LOOKING_AHEAD, False, False),
    ],
)
def test_what_differs_in_more_than_columns_is_computed_as_it_is_written(name: str, replays: bool, repeats: bool):
    method = find(name)
    assert DecisionObjective(method, None, slice_columns(method), replays)._repeats is repeats
