"""Who acts while experience is gathered."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from upslope.rollout.acting import EpsilonGreedy, GaussianNoise, UniformFirst
from upslope.types import ActingContext


def context(env_steps: int, discrete: bool = False, planned: int = 1000, seed: int = 0) -> ActingContext:
    size = 4 if discrete else 2
    return ActingContext(np.zeros((200, 3), np.float32), env_steps, planned, np.random.default_rng(seed), discrete, size)


def test_uniform_first_and_then_the_policy():
    part, action = UniformFirst(steps=50), np.full((200, 2), 0.3, np.float32)
    first = part(action, context(49))
    assert first.dtype == np.float32 and np.abs(first).max() <= 1 and np.abs(first.mean(0)).max() < 0.15 and first.std() > 0.5
    assert part(action, context(50)) is action and part.warm_up() == 50
    ids = part(np.zeros(200, np.int64), context(0, discrete=True))
    assert set(ids.tolist()) == {0, 1, 2, 3}


def test_noise_stays_in_the_box():
    action = np.full((200, 2), 0.95, np.float32)
    noisy = GaussianNoise(std=0.1)(action, context(0))
    assert noisy.dtype == np.float32 and noisy.max() == 1.0 and 0.7 < noisy.mean() < 0.95
    np.testing.assert_array_equal(GaussianNoise(std=0.0)(action, context(0)), action)
    free = GaussianNoise(std=0.1)(np.zeros((200, 2), np.float32), context(0))
    assert free.std() == pytest.approx(0.1, rel=0.15) and GaussianNoise().warm_up() == 0


def test_epsilon_falls_over_its_share_of_the_run():
    part = EpsilonGreedy(start=1.0, end=0.1, share=0.5)
    assert [part.epsilon(steps, 1000) for steps in (0, 250, 500, 900)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert part.epsilon(0, 0) == 1.0, "a run that acts in no step"
    action = np.full(200, 2, np.int64)
    early, late = part(action, context(0, discrete=True)), part(action, context(900, discrete=True))
    assert 0.15 < (early == 2).mean() < 0.35 and (late == 2).mean() > 0.85


def test_the_same_tick_draws_the_same():
    for part in (UniformFirst(), GaussianNoise()):
        one, same, other = (part(np.zeros((200, 2), np.float32), context(0, seed=seed)) for seed in (1, 1, 2))
        assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.parametrize("part", [UniformFirst(steps=50), EpsilonGreedy(start=1.0, end=1.0)], ids=["uniform", "greedy"])
def test_only_what_is_allowed_is_tried(part):
    mask = np.array([[True, False, True, False], [False, True, False, False]] * 100)
    found = part(np.where(mask[:, 1], 1, 0), dataclasses.replace(context(0, discrete=True), action_mask=mask))
    assert mask[np.arange(200), found].all() and set(found[::2].tolist()) == {0, 2}
    assert (found[::2] == 0).mean() == pytest.approx(0.5, abs=0.15)
