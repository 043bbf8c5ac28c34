"""The last sampled decision of a row."""

from __future__ import annotations

import torch

from upslope.objective.functional.last_decision import last_decision


def test_the_last_sampled_position_and_no_other():
    sampled = torch.tensor([[1.0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 1], [0, 0, 0]])  # tool tokens in the middle, padding, nothing
    expected = [[0, 0, 1], [0, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert last_decision(sampled).tolist() == [[bool(each) for each in row] for row in expected]
    assert last_decision(torch.zeros(2, 0)).shape == (2, 0)
