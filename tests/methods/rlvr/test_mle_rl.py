"""mle-rl: an answer counts by how long it took; where all took as long it is the method it was added to."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from batches import assert_same, gradient
from small_learner import SIZES, learner, weights

import upslope as up
from upslope.errors import MethodError, UserError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.methods import compose, find
from upslope.objective.weight.by_duration import ByDuration
from upslope.report.describe import show_text
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.types import Batch, View

mle_rl, grpo = find("mle-rl"), find("grpo")


def lasting(batch: Batch, seconds: list[float]) -> Batch:
    """The batch with rows that took so long, each behind its last decision."""
    last = (batch.sampled > 0) & (batch.sampled.flip(1).cumsum(1).flip(1) == 1)
    return batch.replace(seconds=last * torch.tensor(seconds, dtype=batch.sampled.dtype).unsqueeze(1))


def rows(seconds: list[list[float]], sampled: list[list[float]] | None = None, **more) -> Batch:
    took = torch.tensor(seconds)
    on = torch.ones_like(took) if sampled is None else torch.tensor(sampled)
    nobody = torch.zeros(len(seconds), dtype=torch.int64)
    return Batch(on, nobody.float(), nobody, nobody, View(torch.zeros_like(on)), seconds=took, **more)


@pytest.mark.checks("identity", "mle-rl")
@pytest.mark.parametrize("seconds", [0.0, 0.1, 1 / 3, 7e5])
def test_equal_durations_are_the_parent_to_the_bit(ragged_batch: Batch, seconds):
    equal = lasting(ragged_batch, [seconds] * ragged_batch.rows)
    assert torch.equal(ByDuration()(equal), torch.ones_like(equal.sampled))
    for name in ("grpo", "dhpo", "reinforce"):
        assert_same(gradient(compose([find(name), mle_rl]), equal), gradient(find(name), equal), rtol=0, atol=0)
    assert_same(gradient(mle_rl, ragged_batch), gradient(grpo, ragged_batch), rtol=0, atol=0)


@pytest.mark.checks("oracle", "mle-rl")
def test_a_worked_example():
    """Rows of 1, 5 and 3 s count 1/3, 5/3 and 1; the empty row and the one nobody measured are in no mean."""
    nan = math.nan
    batch = rows(
        [[0.0, 1.0], [2.0, 3.0], [3.0, 9.0], [8.0, 8.0], [nan, nan]],
        [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]],
    )
    wanted = torch.tensor([[1 / 3, 1 / 3], [5 / 3, 5 / 3], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    torch.testing.assert_close(ByDuration()(batch), wanted)


@pytest.mark.checks("oracle", "mle-rl")
def test_a_gradient_by_hand(ragged_batch: Batch):
    """Each row's gradient is that of the parent times its share of the mean duration: the loss is a plain sum over rows."""
    took = [float(number % 4 + 1) for number in range(ragged_batch.rows)]
    plain = grpo.derive(name="plain", differs="without the distance", regularize=())
    theirs = gradient(plain, ragged_batch).logp
    ours = gradient(compose([plain, mle_rl]), lasting(ragged_batch, took)).logp
    factor = torch.tensor(took, dtype=theirs.dtype) / (sum(took) / len(took))
    torch.testing.assert_close(ours, theirs * factor.unsqueeze(1))
    assert bool((theirs != 0).any())


def test_turns_are_actions_of_their_own():
    batch = rows([[1.0, 0.0, 3.0], [4.0, 4.0, 0.0]], segment={"turn": torch.tensor([[0, 0, 1], [0, 0, 1]])})
    torch.testing.assert_close(ByDuration(unit="turn")(batch), torch.tensor([[1.0, 1.0, 3.0], [8.0, 8.0, 0.0]]) / 3.0)
    assert ByDuration(unit="turn").needs() == {"seconds", "segment.turn"}


def test_edges():
    assert torch.equal(ByDuration()(rows([[7.0, 2.0]])), torch.ones(1, 2)), "one action alone counts once"
    assert torch.equal(ByDuration()(rows([[0.0], [2.0]])), torch.tensor([[0.0], [2.0]])), "what took no time counts nothing"
    assert torch.equal(ByDuration()(rows([[5.0], [1.0]]).replace(seconds=None)), torch.ones(2, 1)), "nobody measured"
    assert torch.equal(ByDuration()(rows([[5.0], [1.0]], [[0.0], [0.0]])), torch.ones(2, 1)), "nothing was decided"
    for wrong in (-1.0, math.inf):
        with pytest.raises(MethodError, match="times are finite"):
            ByDuration()(rows([[wrong], [1.0]]))


def test_show_says_that_it_does_not_repeat():
    assert "not repeatable: weight.0 reads how long things took" in " ".join(show_text(mle_rl).split())
    assert "not repeatable" not in show_text(grpo)


def test_it_is_refused_where_nobody_can_measure():
    with pytest.raises(UserError, match="needs 'seconds'"):
        up.train("ppo+mle-rl", "gym:CartPole-v1")


TOLD = """
def score(prompts, responses, answers):
    return dict(reward=[float(len(r) % 3) for r in responses], seconds=[{seconds} for r in responses])
"""


def rewarded(name: str, settings: Settings, reward: str) -> PolicyGradient:
    bench = set_up(find(name), "reverse", "tiny:layers=1,width=32", settings, [reward])
    return PolicyGradient(bench.method, bench.policy, bench.rollout, bench.settings, bench.policy.frozen_copy())


@pytest.mark.parametrize("seconds", ["2.5", "1.0 + len(r)"])
def test_times_that_a_reward_tells_are_learned_by(tmp_path, seconds):
    file = tmp_path / "told.py"
    file.write_text(TOLD.format(seconds=seconds))
    settings = dataclasses.replace(SIZES, reuse="off")
    ours, theirs = (rewarded(name, settings, f"{file}:score") for name in ("mle-rl", "grpo"))
    for step in (1, 2):
        ours.step(step), theirs.step(step)
    assert ours.last is not None and ours.last.seconds is not None
    took = ours.last.seconds.sum(1)
    equal = seconds == "2.5"
    assert (len(took.unique()) == 1) == equal
    assert torch.equal(weights(ours), weights(theirs)) == equal


def test_times_that_nobody_tells_are_measured():
    made = learner("mle-rl", SIZES)
    made.step(1)
    assert made.last is not None and made.last.seconds is not None
    took = made.last.seconds.sum(1)
    assert bool((took > 0).all()) and len(took.unique()) > 1, "each answer has a time of its own"
