"""The pessimistic clip's tail: the worse of two gains, and a floor where the advantage is negative."""

from __future__ import annotations

import math

import torch
from batches import assert_same, gradient

from upslope.methods import find
from upslope.objective.estimator import annotate, begin_update
from upslope.objective.ratio import TokenRatio
from upslope.objective.surrogate import PessimisticClip, Unclipped
from upslope.objective.surrogate.clip import pessimistic
from upslope.types import Batch


def tail(dual: float) -> tuple[list[float], dict[str, list[bool]]]:
    """Ratios 1.5, 1.5, 0.5, 0.5, 4, 1 with advantages 2, -2, 2, -2, -2, 0 and a trust region of 0.2."""
    ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5, 4.0, 1.0]], dtype=torch.float64)
    advantage = torch.tensor([[2.0, -2, 2, -2, -2, 0]], dtype=torch.float64)
    loss, notes = pessimistic(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage, advantage, dual)
    return loss[0].tolist(), {name: column[0].tolist() for name, column in notes.items()}


def test_the_worse_of_both_by_hand():
    # Gains min(3, 2.4), min(-3, -2.4), min(1, 1.6), min(-1, -1.6), min(-8, -2.4), 0.
    loss, notes = tail(math.inf)
    assert loss == [-2.4, 3.0, -1.0, 1.6, 8.0, 0.0]
    assert notes == {
        "clipped_high": [True, False, False, False, False, False],
        "clipped_low": [False, False, False, True, False, False],
    }


def test_the_dual_bound_holds_only_where_the_advantage_is_negative():
    # With dual 1.5 no loss of a negative advantage is above 1.5 * 2 = 3; exactly 3 is not above it.
    loss, notes = tail(1.5)
    assert loss == [-2.4, 3.0, -1.0, 1.6, 3.0, 0.0]
    assert notes["clipped_dual"] == [False, False, False, False, True, False]


PLAIN = find("grpo").derive(regularize=None)
"""GRPO without its KL term."""


def test_the_pessimistic_clip_is_a_hinge(ragged_batch: Batch):
    """-min(rA, clip(r)A) = |A| max(0, sgn(A) ((1 + eps sgn A) - r)) - A - eps |A|."""
    batch = begin_update(PLAIN, annotate(PLAIN, ragged_batch))
    (branch,), advantage, sign = TokenRatio()(batch), batch.advantage, batch.advantage.sign()
    loss, _ = PessimisticClip(0.2, 0.2)(batch, (branch,))
    hinge = advantage.abs() * (sign * (1 + 0.2 * sign - branch.value)).clamp_min(0) - advantage - 0.2 * advantage.abs()
    torch.testing.assert_close(loss * batch.sampled, hinge * batch.sampled)


def test_infinite_bounds_are_no_clip(ragged_batch: Batch):
    wide = PLAIN.derive(surrogate=PessimisticClip(math.inf, math.inf))
    assert_same(gradient(wide, ragged_batch), gradient(PLAIN.derive(surrogate=Unclipped()), ragged_batch))
