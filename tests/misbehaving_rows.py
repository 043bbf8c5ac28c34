"""Rows of the workers that misbehave."""

from __future__ import annotations

import torch

from upslope.policies.text_inputs import TextInputs
from upslope.types import Assignment, Trajectories, View


def rows_of(assignment: Assignment) -> Trajectories:
    """As many as are asked for, each worth the step's number."""
    count = sum(assignment.samples)
    one, nobody = torch.ones(count, 1), torch.zeros(count, dtype=torch.int64)
    inputs = TextInputs(torch.ones(count, 1, dtype=torch.int64), one)
    return Trajectories(one, torch.full((count,), float(assignment.step)), nobody, nobody, View(one), inputs=inputs)
