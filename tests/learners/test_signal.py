"""A run with almost nothing to learn from is told so, once, with the reward and some answers."""

from __future__ import annotations

import json
import warnings

import pytest

import upslope as up
from upslope.errors import Remark
from upslope.learners.signal import SignalWatch
from upslope.methods import find

SMALL = dict(model="tiny:layers=1,width=16", tasks_per_step=4, samples_per_task=2, warm_start=0.0, eval_problems=2, max_tokens=4)
SAMPLES = [{"prompt": f"p{n}", "response": f"it is {n}", "answer": str(n)} for n in (1, 1, 2, 3, 4)]


def steps(constant, reward=0.01):
    return [{"constant_groups": share, "reward": reward} for share in constant]


def watch(method="grpo", samples=8):
    return SignalWatch(find(method), ["exact"], samples)


def test_almost_no_signal_is_told_with_reward_answers_and_cure():
    told = watch().remark(steps([1.0, 0.9, 0.95, 1.0, 0.95]), SAMPLES)
    assert told.startswith(
        "in 96% of the groups of the first 5 steps every answer earned the same (0.01 on average), so almost nothing"
    )
    assert (
        "The reward is exact; it was told 'it is 1' where '1' is expected; 'it is 2' where '2' is expected; 'it is 3' where" in told
    )
    assert "'it is 4'" not in told and "--reward number, boxed, choice or contains" in told


@pytest.mark.parametrize("constant", [[1.0, 1.0, 1.0, 1.0, 0.7], [1.0] * 4])
def test_a_signal_or_too_few_steps_are_not_told(constant):
    assert watch().remark(steps(constant), SAMPLES) == ""


def test_what_is_always_earned_wants_harder_problems():
    assert "Try harder problems" in watch().remark(steps([1.0] * 5, reward=1.0), [])


def test_methods_that_do_not_compare_within_a_group_are_left_alone():
    assert watch().watches and not watch(samples=1).watches and not watch("ppo").watches


@pytest.mark.parametrize("method", ["hpt", "ahpo", "luffy", "srft", "ghpo"])
def test_methods_that_others_teach_are_left_alone(method):
    assert not watch(method).watches


def test_a_run_says_it_once(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What is {i}?", "answer": f"the number {i}"}) + "\n" for i in range(40)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        up.train("grpo", str(file), reward="exact", steps=7, **SMALL, audit="off", out=tmp_path / "run")
    told = [str(each.message) for each in said if each.category is Remark and "almost nothing is learned" in str(each.message)]
    assert len(told) == 1 and "The reward is exact" in told[0] and "is expected" in told[0]
