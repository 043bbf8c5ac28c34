"""With which policy a step is compared: the age of a snapshot."""

from __future__ import annotations

import pytest
import torch
from tables import table_learner

from upslope.methods import find
from upslope.objective.references import Snapshot
from upslope.objective.regularize import ReferenceKL


@pytest.mark.parametrize(
    ("every", "steps_before"),
    [
        # The policy after so many steps, seen by step 1, 2, 3, ...: with every = 1 the one before the last step's updates.
        (1, [0, 0, 1, 2, 3]),
        # Snapshots are taken before steps 3, 5 and 7, and the one before the newest is compared with: two to three steps old.
        (2, [0, 0, 0, 0, 2, 2, 4]),
    ],
)
def test_a_snapshot_is_between_one_and_two_of_its_intervals_old(every: int, steps_before: list[int]):
    method = find("grpo").derive(references={"old": Snapshot(every=every)}, regularize=ReferenceKL(reference="old"))
    made = table_learner(method, lr=0.1, steps=len(steps_before), warmup=0, passes=1, updates_per_step=1)
    past = []
    for step, wanted in enumerate(steps_before, 1):
        past.append(made.policy.frozen_copy())
        made.step(step)
        rows = made.last
        with torch.no_grad():
            far = [(rows.sampled * (old.evaluate(rows).logp - rows.reference["old"].logp)).abs().max().item() for old in past]
        assert far[wanted] < 1e-5, f"step {step} is compared with another policy than that after {wanted} steps: {far}"
        assert all(distance > 1e-3 for number, distance in enumerate(far) if number != wanted), far
