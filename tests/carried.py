"""A run that is stopped, written to disk and taken up again, for methods whose state only fills after some steps."""

from __future__ import annotations

from pathlib import Path

from small_learner import learner, weights

from upslope.learners.policy_gradient import PolicyGradient
from upslope.runtime.files import load_state, save_state
from upslope.runtime.settings import Settings
from upslope.types import Method


def assert_carries_over(method: Method, settings: Settings, folder: Path, steps: int, stop: int) -> PolicyGradient:
    """Steps in one go and with a stop in between end in the same weights, to the last bit; gives the first learner."""
    whole, before, after = (learner(method, settings) for _ in range(3))
    for step in range(1, steps + 1):
        whole.step(step)
    for step in range(1, stop + 1):
        before.step(step)
    save_state(folder, "learner", before.state())
    after.policy.load_weights({name: tensor.clone() for name, tensor in before.policy.weights().items()})
    after.rollout.sync()
    after.load_state(load_state(folder, "learner"))
    for step in range(stop + 1, steps + 1):
        after.step(step)
    assert weights(after).equal(weights(whole))
    return whole
