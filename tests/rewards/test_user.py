"""Rewards of the user's own: how they are called, and what becomes of one that does not do as it should."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from upslope.errors import Remark
from upslope.rewards import RewardError, UserReward, load_reward

PROMPTS, RESPONSES, ANSWERS = ["p0", "p1", "p2"], ["a", "bb", "ccc"], ["a", "b", "c"]


@pytest.fixture
def write(tmp_path):
    def written(body: str, name: str = "my.py") -> str:
        (tmp_path / name).write_text(body)
        return str(tmp_path / name)

    return written


def call(reward):
    return reward(PROMPTS, RESPONSES, ANSWERS)


def test_a_users_function_is_called_with_lists_and_known_by_its_file(write):
    body = "def score(prompts, responses, answers):\n    return [len(r) == len(a) for r, a in zip(responses, answers)]\n"
    path = write(body)
    reward = load_reward(f"{path}:score")
    assert call(reward) == [1.0, 0.0, 0.0]
    assert (reward.source, reward.digest) == (path, hashlib.sha256(body.encode()).hexdigest())


def test_infos_come_by_name_and_another_fourth_parameter_keeps_its_default(write):
    path = write(
        "def with_infos(prompts, responses, answers, infos):\n    return [i['level'] for i in infos]\n"
        "def with_knob(prompts, responses, answers, scale=2.0):\n    return [scale for _ in responses]\n"
    )
    assert load_reward(f"{path}:with_infos")(["p"], ["r"], ["a"], infos=[{"level": 3}]) == [3.0]
    assert load_reward(f"{path}:with_knob")(["p"], ["r"], ["a"], infos=[{}]) == [2.0]


def test_an_async_function_works_with_and_without_a_running_loop(write):
    path = write(
        "import asyncio\nasync def score(prompts, responses, answers):\n    await asyncio.sleep(0)\n    return [0.5, 1, 2]\n"
    )
    reward = load_reward(f"{path}:score")
    assert call(reward) == [0.5, 1.0, 2.0]

    async def inside():
        return call(reward)

    assert asyncio.run(inside()) == [0.5, 1.0, 2.0]


def test_components_and_arrays_are_taken(write):
    path = write(
        "import numpy as np\ndef score(prompts, responses, answers):\n"
        "    return {'reward': np.ones(3, np.float32), 'length': [len(r) for r in responses]}\n"
    )
    assert call(load_reward(f"{path}:score")) == {"reward": [1.0] * 3, "length": [1.0, 2.0, 3.0]}


def test_a_file_can_import_its_neighbour_and_leaves_the_path_alone(write):
    write("FACTOR = 3\n", "upslope_test_neighbour.py")
    path = write("from upslope_test_neighbour import FACTOR\ndef score(prompts, responses, answers):\n    return [FACTOR] * 3\n")
    before = list(sys.path)
    assert call(load_reward(f"{path}:score")) == [3.0] * 3
    assert sys.path == before
    del sys.modules["upslope_test_neighbour"]


def test_a_function_that_raises_is_blamed_on_the_row_with_its_line_and_cause(write):
    path = write(
        "def score(prompts, responses, answers):\n    for r in responses:\n"
        "        if len(r) == 2:\n            raise KeyError('lost')\n    return [1.0] * len(responses)\n"
    )
    with pytest.raises(RewardError, match=r"KeyError: 'lost' \(line 4\) on row 1:\n  prompt:   'p1'\n  response: 'bb'") as caught:
        call(load_reward(f"{path}:score"))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_function_that_raises_on_the_whole_only_says_so():
    def score(prompts, responses, answers):
        if len(responses) > 1:
            raise ValueError("too many")
        return [0.0]

    with pytest.raises(RewardError, match=r"too many.* on 3 responses, though not on any of them alone"):
        call(UserReward(score))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None, "1.0", [1.0], np.float32("nan")])
def test_what_is_no_number_is_blamed_on_the_row(bad):
    with pytest.raises(RewardError, match=r"no finite number, for row 2:\n  prompt:   'p2'\n  response: 'ccc'"):
        call(UserReward(lambda prompts, responses, answers: [1.0, True, bad]))


@pytest.mark.parametrize("returned", [0.5, None, "111", {"reward": 1.0}])
def test_what_is_no_list_is_refused(returned):
    with pytest.raises(RewardError, match="a list of 3 numbers was expected"):
        call(UserReward(lambda prompts, responses, answers: returned))


def test_the_wrong_number_of_rewards_is_refused():
    with pytest.raises(RewardError, match="returned 2 rewards for 3 responses"):
        call(UserReward(lambda prompts, responses, answers: [1.0, 1.0]))
    with pytest.raises(RewardError, match="returned 4 values of 'style' for 3 responses"):
        call(UserReward(lambda prompts, responses, answers: {"reward": [1.0] * 3, "style": [1.0] * 4}))
    with pytest.raises(RewardError, match="no 'reward' among them"):
        call(UserReward(lambda prompts, responses, answers: {"style": [1.0] * 3}))


def test_a_long_response_is_shown_by_its_start():
    reward = UserReward(lambda prompts, responses, answers: [float("nan")])
    with pytest.raises(RewardError) as caught:
        reward(["p"], ["x" * 10_000], ["a"])
    assert len(str(caught.value)) < 300


def test_files_and_functions_that_are_not_there(write):
    path = write("def score(prompts, responses, answers):\n    return []\nlimit = 3\n")
    with pytest.raises(RewardError, match=r"Did you mean 'my\.py'"):
        load_reward(path.replace("my.py", "mine.py") + ":score")
    with pytest.raises(RewardError, match=r"no function 'scor'.* Did you mean 'score'"):
        load_reward(f"{path}:scor")
    with pytest.raises(RewardError, match=r"'limit' .* is not a function"):
        load_reward(f"{path}:limit")
    with pytest.raises(RewardError, match="say which function"):
        load_reward(path)
    with pytest.raises(RewardError, match="Did you mean 'exact'"):
        load_reward("exat")


def test_wrong_parameters_are_refused_before_any_call(write):
    path = write("def score(prompt, response):\n    return 1.0\n")
    with pytest.raises(
        RewardError, match=r"score\(prompt, response\) cannot .* Write it as def score\(prompts, responses, answers\)"
    ):
        load_reward(f"{path}:score")


def test_a_file_that_does_not_load_is_reported_with_its_line(write):
    with pytest.raises(RewardError, match=r"ZeroDivisionError: division by zero \(line 2\)"):
        load_reward(write("x = 0\ny = 1 / x\n") + ":score")
    with pytest.raises(RewardError, match="SyntaxError"):
        load_reward(write("def score(:\n", "broken.py") + ":score")


# -- what is not a reward's to change --------------------------------------------------------------------------------------

CHANGES = {
    "torch's default dtype to torch.float64": ("torch.set_default_dtype(torch.float64)", torch.get_default_dtype),
    "the working folder to '/'": ("os.chdir('/')", os.getcwd),
    "torch's grad mode to False": ("torch.set_grad_enabled(False)", torch.is_grad_enabled),
    "torch's number of threads to 2": ("torch.set_num_threads(2)", torch.get_num_threads),
    "torch's default device to meta": ("torch.set_default_device('meta')", torch.get_default_device),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("ends", ["return [1.0] * len(r)", "raise ValueError('no')"])
def test_what_a_reward_changes_beside_its_results_is_put_back_and_told_once(change, ends, write):
    does, now = CHANGES[change]
    before = now()
    reward = load_reward(write(f"import os, torch\ndef score(p, r, a):\n    {does}\n    {ends}\n") + ":score")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            with nullcontext() if "return" in ends else pytest.raises(RewardError):
                call(reward)
            assert now() == before
    (told,) = [str(warning.message) for warning in said if warning.category is Remark]
    assert f"my.py:score changed {change}. It is put back" in told


def test_a_reward_that_changes_nothing_is_not_told_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(UserReward(lambda prompts, responses, answers: [random.random() for _ in responses]))


@pytest.mark.parametrize("value", [1e39, -1e39, 1e19, 10**30])
def test_a_reward_that_float32_cannot_compare_is_refused_with_its_row(value):
    with pytest.raises(RewardError, match=r"(?s)beyond 1e\+18: float32 cannot compare such rewards.*row 1:\n  prompt:   'p1'"):
        call(UserReward(lambda prompts, responses, answers: [0.0, value, 0.0]))
    with pytest.raises(RewardError, match="beyond 1e"):
        call(UserReward(lambda prompts, responses, answers: {"reward": [0.0] * 3, "style": [0.0, value, 0.0]}))
    assert call(UserReward(lambda prompts, responses, answers: [0.0, 1e18, 0.0])) == [0.0, 1e18, 0.0]


def test_a_component_whose_name_cannot_be_written_is_refused():
    with pytest.raises(RewardError, match=r"under the name '\\udc80', which cannot be written as UTF-8"):
        call(UserReward(lambda prompts, responses, answers: {"reward": [1.0] * 3, "\udc80": [1.0] * 3}))


def test_a_number_of_thousands_of_digits_is_no_finite_number():
    with pytest.raises(RewardError, match="a number of thousands of digits, which is no finite number"):
        call(UserReward(lambda prompts, responses, answers: [10**5000, 0.0, 0.0]))
