"""Rewards written for other libraries, called as these do: told by the names of their parameters."""

from __future__ import annotations

import math

import pytest

from upslope.rewards import RewardError, load_reward
from upslope.tasks.text import Problem, RewardRows, call_reward

PROBLEMS = [Problem("1+1?", "2", {"level": 1, "topic": "sum"}), Problem("2+2?", "4", {"level": 2})]
TALK = [{"role": "user", "content": "hi"}]


def conversation(prompt, answer=""):
    return Problem(prompt, answer, messages=tuple(TALK))


def paid(function, problems=PROBLEMS, responses=("2", "5"), task_name="numbers"):
    return call_reward(load_reward(function), problems, responses, task_name)


def test_trl_gets_every_column_as_a_list_by_name():
    seen = {}

    def accuracy(completions, **kwargs):
        seen.update(kwargs, completions=completions)
        return [float(said == right) for said, right in zip(completions, kwargs["answer"], strict=True)]

    assert paid(accuracy) == ([1.0, 0.0], {})
    assert seen == {
        "completions": ["2", "5"], "prompts": ["1+1?", "2+2?"], "answer": ["2", "4"], "level": [1, 2], "topic": ["sum", None],
    }  # fmt: skip


def test_trl_without_open_keywords_gets_what_it_names():
    def levels(prompts, completions, level, scale=2.0):
        return [scale * each for each in level]

    assert paid(levels)[0] == [2.0, 4.0]


def test_trl_gets_messages_where_the_prompt_is_a_list_of_them():
    def told(prompts, completions, **columns):
        assert prompts == [TALK] and completions == [[{"role": "assistant", "content": "2"}]]
        return [1.0]

    assert paid(told, [conversation("user: hi", "2")], ["2"])[0] == [1.0]


def test_none_says_that_a_reward_does_not_apply_to_a_row():
    def sometimes(completions, **columns):
        return [None, 0.5]

    rewards, components = paid(sometimes)
    assert rewards == [0.0, 0.5] and math.isnan(components["sometimes"][0]) and components["sometimes"][1] == 0.5

    def ours(prompts, responses, answers):
        return [None, 0.5]

    with pytest.raises(RewardError, match="None, which is no finite number"):
        paid(ours)


def test_the_expected_answer_comes_under_the_names_that_functions_have_for_it():
    def accuracy(completions, solution, **columns):
        return [float(said == right) for said, right in zip(completions, solution, strict=True)]

    assert paid(accuracy)[0] == [1.0, 0.0]
    assert paid(accuracy, [Problem("p", "2", {"solution": "5"})], ["5"])[0] == [1.0]


def test_a_column_that_is_not_there_is_named():
    def needs(completions, difficulty):
        return [0.0]

    with pytest.raises(
        RewardError, match=r"needs the column 'difficulty', which the data do not have. There are answer, level, topic"
    ):
        paid(needs)


def test_what_trl_would_log_is_taken_and_an_async_function_is_waited_for():
    async def logs(completions, log_metric, log_extra, **columns):
        log_metric("mean", 0.5)
        log_extra("said", completions)
        return [0.25, 0.75]

    assert paid(logs)[0] == [0.25, 0.75]


def test_a_real_reward_of_trl_is_called_as_trl_does():
    from trl.rewards import get_soft_overlong_punishment, think_format_reward

    thought, plain = "<think>well</think>2", "2"
    talk = [conversation("a"), conversation("b")]
    assert paid(think_format_reward, talk, [thought, plain])[0] == [1.0, 0.0]
    with pytest.raises(RewardError, match="needs 'completion_ids', which no reward is given here: it sees text"):
        load_reward(get_soft_overlong_punishment(10, 5))


def test_verl_is_called_row_by_row():
    seen = []

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        seen.append((data_source, solution_str, ground_truth, extra_info))
        return float(solution_str == ground_truth)

    theirs = Problem("p", "", {"data_source": "gsm8k", "reward_model": {"ground_truth": "7"}, "extra_info": {"index": 3}})
    assert paid(compute_score, [PROBLEMS[0], theirs], ["2", "7"])[0] == [1.0, 1.0]
    assert seen == [("numbers", "2", "2", {"level": 1, "topic": "sum"}), ("gsm8k", "7", "7", {"index": 3})]


def test_verl_may_return_a_mapping_with_a_score():
    def compute_score(data_source, solution_str, ground_truth, **more):
        return {"score": 1.0 if solution_str == ground_truth else -1.0, "acc": solution_str == ground_truth, "pred": solution_str}

    assert paid(compute_score) == ([1.0, -1.0], {"acc": [1.0, 0.0]})

    def none(solution_str, ground_truth):
        return {"acc": 1}

    with pytest.raises(RewardError, match="without 'score'"):
        paid(none)


def test_a_real_reward_of_verl_is_called_as_verl_does():
    from verl.utils.reward_score.gsm8k import compute_score

    assert paid(compute_score, responses=["so\n#### 2", "so\n#### 5"])[0] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (
            lambda data_source, solution_str, ground_truth, router: 0.0,
            "needs 'router', which no reward is given. Give it a default.",
        ),
        (lambda one: [0.0], r"cannot be called with three lists. Write it as def .*prompts, responses, answers"),
    ],
)
def test_what_cannot_be_called_is_refused_before_it_is(function, told):
    with pytest.raises(RewardError, match=told):
        load_reward(function)


def test_an_error_names_the_row():
    def breaks(completions, **columns):
        return [1 / len(said) for said in completions]

    with pytest.raises(RewardError, match=r"breaks raised ZeroDivisionError[\s\S]*row 1:\n  prompt:   '2\+2\?'"):
        paid(breaks, responses=["2", ""])


def test_a_row_alone_keeps_its_columns():
    rows = RewardRows.of(PROBLEMS, ["2", "5"], "numbers").only(1)
    assert (rows.answers, rows.infos, rows.messages, rows.task_name) == (["4"], [{"level": 2}], [None], "numbers")
