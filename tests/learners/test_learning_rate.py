"""The learning rate of each step, by hand."""

from __future__ import annotations

import math

import pytest

from upslope.learners.optimizer_step import learning_rate
from upslope.runtime.settings import Settings

LR = 0.8
HALFWAY = 0.5 * (1 - math.cos(math.pi * 0.75))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Two steps of warm-up, then what is left of the other four: 4/4, 3/4, 2/4, 1/4.
        ({"schedule": "linear", "warmup": 2, "steps": 6}, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "warmup": 2, "steps": 6, "lr_floor": 0.2}, [0.5, 1.0, 1.0, 0.8, 0.6, 0.4]),
        ({"schedule": "constant", "warmup": 4, "steps": 6, "lr_floor": 0.2}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        ({"schedule": "cosine", "warmup": 0, "steps": 4}, [1.0, HALFWAY, 0.5, 1 - HALFWAY]),
        ({"schedule": "cosine", "warmup": 0, "steps": 4, "lr_floor": 0.1}, [1.0, 0.1 + 0.9 * HALFWAY, 0.55, 1 - 0.9 * HALFWAY]),
        ({"warmup": 1, "steps": 2}, [1.0, 1.0]),  # linear unless something else is asked for
        ({"warmup": 0, "steps": 4}, [1.0, 0.75, 0.5, 0.25]),
        ({"steps": 2}, [1.0, 0.5]),
        ({"warmup": 2, "steps": 2, "schedule": "linear"}, [0.5, 1.0]),  # nothing is left behind the warm-up
        ({"schedule": "linear"}, [1.0]),
    ],
)
def test_a_rise_then_a_fall_to_the_floor(settings: dict, expected: list[float]):
    found = [learning_rate(Settings(lr=LR, **settings), step) for step in range(1, len(expected) + 1)]
    assert found == pytest.approx([LR * share for share in expected])


def test_no_learning_rate_is_none():
    assert learning_rate(Settings(steps=3), 1) == 0.0
