"""Which columns are the prompt and the answer, by name or as the user says; prompts as messages."""

from __future__ import annotations

import json

import pytest

from upslope.errors import TaskError
from upslope.rewards import load_reward
from upslope.tasks import load_task

USER = {"role": "user", "content": "What is 2+2?"}
SYSTEM = {"role": "system", "content": "Be brief."}
SAID = {"role": "assistant", "content": "4"}


@pytest.fixture
def load(tmp_path):
    def loaded(*rows, columns="", reward="exact"):
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_task(str(tmp_path / "data.jsonl"), reward=load_reward(reward), columns=columns)

    return loaded


def only(task):
    return task.rows[0][1].problem


@pytest.mark.parametrize("prompt", ["question", "problem", "query", "instruction", "input"])
@pytest.mark.parametrize("answer", ["answer", "solution", "output", "target", "label", "ground_truth"])
def test_common_names_are_recognised_and_said(load, prompt, answer):
    task = load({prompt: "2+2=", answer: 4, "other": [1]})
    assert (only(task).prompt, only(task).answer) == ("2+2=", "4")
    assert only(task).info["other"] == [1] and prompt in only(task).info
    assert f"the prompt is {prompt!r}" in task.describe()
    assert (f"the answer is {answer!r}" in task.describe()) == (answer != "answer")


def test_names_of_our_own_are_taken_without_a_word(load):
    task = load({"prompt": "2+2=", "answer": "4", "question": "another", "label": 1, "messages": [USER]})
    assert (only(task).prompt, only(task).answer) == ("2+2=", "4")
    assert "By their names" not in task.describe()
    assert only(task).info == {"question": "another", "label": 1, "messages": [USER]}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"question": "a", "problem": "b", "answer": "1"},
            "'question' or 'problem' could be the prompt. Say which: --columns prompt=question",
        ),
        (
            {"prompt": "a", "solution": "b", "label": 1},
            "'solution' or 'label' could be the answer. Say which: --columns answer=sol",
        ),
        ({"text": "a", "answer": "1"}, 'line 1: no "prompt". Its columns: text, answer. Say which it is: --columns prompt=NAME'),
    ],
)
def test_what_could_be_several_or_none_is_refused_with_the_flag(load, row, told):
    with pytest.raises(TaskError) as caught:
        load(row)
    assert told in str(caught.value)


def test_columns_as_the_user_says(load):
    row = {"text": "2+2=", "solution": "4", "label": "x", "part": "test", "role": "Be brief."}
    other = {**row, "text": "3+3=", "part": "train"}
    task = load(row, other, columns="prompt=text, answer=solution,split=part,system=role")
    assert only(task).messages == (SYSTEM, {"role": "user", "content": "2+2="})
    assert [problem.answer for problem in task.division.problems["test"]] == ["4"]
    assert "By their names" not in task.describe()
    deep = load({"prompt": "a", "meta": {"deep": {"answer": 3}}}, columns="answer=meta.deep.answer")
    assert only(deep).answer == "3" and only(deep).info == {"meta": {"deep": {"answer": 3}}}


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("prompt", "'prompt' is not of the form ROLE=COLUMN"),
        (
            "promt=question",
            "roles are prompt, answer, split, system, solution, hints, documents, category, difficulty, chosen, rejected, "
            "completion, label, revisions. Did you mean 'prompt'",
        ),
        ("prompt=question,prompt=answer", "gives 'prompt' twice"),
        ("prompt=", "leaves no prompt"),
        (
            "prompt=questoin",
            "has no column 'questoin' (--columns prompt=questoin). Did you mean 'question'? Its columns: question, a",
        ),
    ],
)
def test_columns_that_cannot_be_used(load, columns, told):
    with pytest.raises(TaskError) as caught:
        load({"question": "a", "answer": "1"}, columns=columns)
    assert told in str(caught.value)


def test_an_answer_that_is_no_text_can_be_left_to_the_reward(load, tmp_path):
    row = {"prompt": "a", "answer": ["x", "y"]}
    with pytest.raises(TaskError, match=r"must be text or a number, but is .* --columns answer= leaves it to your reward"):
        load(row)
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    task = load_task(str(tmp_path / "data.jsonl"), reward=lambda prompts, responses, answers: [0.0], columns="answer=")
    assert only(task).answer == "" and only(task).info == {"answer": ["x", "y"]}


def test_columns_go_with_a_table_only():
    with pytest.raises(TaskError, match="--columns 'prompt=a' goes with a file of problems; 'sort' makes its own"):
        load_task("sort", columns="prompt=a")


# -- messages --------------------------------------------------------------------------------------------------------------


def test_a_prompt_of_messages_keeps_them_and_reads_as_text(load):
    single, several = load({"prompt": [USER], "answer": 4}), load({"prompt": [SYSTEM, USER], "answer": 4})
    assert only(single).prompt == "What is 2+2?" and only(single).messages == only(single).model_input == (USER,)
    assert only(several).prompt == "system: Be brief.\n\nuser: What is 2+2?"
    assert only(several).messages == (SYSTEM, USER)
    assert only(load({"prompt": "What is 2+2?", "answer": 4})).id == only(single).id != only(several).id


def test_rows_of_verl_and_of_chats(load):
    verl = {
        "data_source": "gsm8k", "prompt": [USER], "ability": "math", "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 3},
    }  # fmt: skip
    problem = only(load(verl))
    assert (problem.prompt, problem.answer) == ("What is 2+2?", "4")
    assert problem.info["data_source"] == "gsm8k" and problem.info["extra_info"] == {"index": 3}
    chat = load({"messages": [SYSTEM, USER, SAID]})
    assert only(chat).messages == (SYSTEM, USER) and only(chat).answer == "4"
    assert "the prompt is 'messages'" in chat.describe()
    assert only(load({"messages": [USER, SAID], "answer": "four"})).answer == "four"
    with pytest.raises(TaskError, match=r'no "answer", which the reward exact compares with'):
        load({"messages": [USER, SAID, USER]})
    with pytest.raises(TaskError, match=r'no "answer"'):
        load({"messages": [USER, SAID]}, columns="answer=")


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ([], '"prompt" must be text or a list of messages'),
        (["What?"], "message 1 of \"prompt\" is 'What?'; it needs a role and content"),
        ([{"role": "user"}], "the content of message 1 of \"prompt\" must be text, but is 'None'"),
        ([{"role": "user", "content": [{"type": "image"}]}], "content of message 1"),
        ([USER, SAID], "ends with the assistant's message, which is an answer and not a prompt"),
        ([{"role": "user", "content": "\ud800"}], "half of a character"),
    ],
)
def test_messages_that_cannot_be_used(load, prompt, told):
    with pytest.raises(TaskError) as caught:
        load({"prompt": prompt, "answer": "4"})
    assert "data.jsonl, line 1: " in str(caught.value) and told in str(caught.value)
