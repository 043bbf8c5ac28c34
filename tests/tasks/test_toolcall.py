"""Calls of functions: how they are read, and what a wrong one is worth."""

from __future__ import annotations

import json

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.policies.tiny import character_tokenizer
from upslope.tasks import load_task
from upslope.tasks.text import Problem
from upslope.tasks.toolcall import Call, ToolCall, call_parts, read_call

F37 = Problem("tfab,gc:fb7a3=", "f(a=3,b=7)", {"function": "f", "arguments": {"a": "3", "b": "7"}})


def test_the_prompt_holds_all_that_the_call_needs():
    task = load_task("toolcall:arguments=4,functions=3")
    for problem in task.sample(50, "train", np.random.default_rng(0)):
        call = read_call(problem.answer)
        schema, _, asked = problem.prompt.removeprefix("t").removesuffix("=").partition(":")
        owned = {each[0]: list(each[1:]) for each in schema.split(",")}
        assert len(owned) == 3 and list(call.arguments) == owned[call.name], "arguments stand in the order of the schema"
        given = dict(zip(asked[1::2], asked[2::2], strict=True))
        assert asked[0] == call.name and given == call.arguments
        assert problem.difficulty == len(call.arguments) and task.is_right(problem, problem.answer)
        assert len(problem.answer) <= task.longest_answer()


@pytest.mark.parametrize("text", ["f(a=3,b=7)", "f(b=7, a=3)", '{"name":"f","arguments":{"a":3,"b":7}}',
                                  '{"arguments": {"b": "7", "a": 3}, "name": "f"}'])  # fmt: skip
def test_both_forms_and_any_order_are_right(text: str):
    scores = ToolCall().score([F37], [text])
    assert scores.correct == [True] and scores.reward == [1.0]
    assert ToolCall().answer_class(F37, text) == ToolCall().answer_class(F37, F37.answer)


def test_parts_of_wrong_calls_by_hand():
    """One value off: 10 characters of which 9 agree, 2 · 9 / 20 = 0.9; (1 + 1 + 1 + 1/2 + 0.9) / 5 = 0.88. Another function with
    one of two arguments, ``g(a=3)``: (a=3 and ) agree, 5 of 6 and 10 characters, 10/16; (0 + 0 + 1/2 + 1/2 + 0.625) / 5 = 0.325."""
    assert call_parts(F37, "f(a=3,b=8)") == {"name": 1, "count": 1, "names": 1, "values": 0.5, "similarity": pytest.approx(0.9)}
    scores = ToolCall().score([F37] * 3, ["f(a=3,b=8)", "g(a=3)", "f(a=3,"])
    assert scores.reward == [pytest.approx(0.88), pytest.approx(0.325), pytest.approx(0.15)]  # 6 of 6 and 10: 0.75, over 5
    assert scores.correct == [False] * 3 and scores.components["name"] == [1.0, 0.0, 0.0]
    more = call_parts(F37, "f(a=3,b=7,c=1)")
    assert (more["count"], more["names"], more["values"]) == (0.0, pytest.approx(2 / 3), pytest.approx(2 / 3))


@pytest.mark.parametrize("text", ["", "f", "f(a=3,a=4)", "f(a=3,)", "f(a=3", '{"name":"f"}', '{"name":1,"arguments":{}}',
                                  "[" * 9999, '{"name":"f","arguments":{"a":1,"a":2}}', '{"a":' * 5000, "f(=3)"])  # fmt: skip
def test_what_is_no_call(text: str):
    assert read_call(text) is None
    assert 0 <= ToolCall().score([F37], [text]).reward[0] < 0.2


def test_a_call_without_arguments_is_one():
    assert read_call("f()") == Call("f", {})


@pytest.mark.parametrize("form", ["call", "json"])
def test_pairs_differ_in_one_value(form: str):
    task = load_task(f"toolcall:form={form},arguments=3")
    for problem in task.sample(20, "train", np.random.default_rng(1)):
        (chosen,), (rejected,) = task.pair(problem)
        right, wrong = read_call(chosen), read_call(rejected)
        assert chosen == problem.answer and right.name == wrong.name and right.arguments.keys() == wrong.arguments.keys()
        assert sum(right.arguments[name] != wrong.arguments[name] for name in right.arguments) == 1
    assert form != "json" or json.loads(chosen)["name"] == right.name


def test_hints_levels_and_knobs():
    task, rng = load_task("toolcall:arguments=4"), np.random.default_rng(0)
    easy = next(each for each in task.sample(50, "train", rng) if each.difficulty == 2)
    assert task.harder(easy, rng).difficulty == 3 and task.easier(easy, rng).difficulty == 1
    assert task.hints(easy)[-1] == easy.answer and {"hints", "pairs", "levels", "variants"} <= task.gives()
    sizes = [problem.difficulty for problem in task.sample(200, "test", rng)]
    assert set(sizes) == {1, 2, 3, 4}
    assert load_task("toolcall:arguments=1").easier(load_task("toolcall:arguments=1").sample(1, "train", rng)[0], rng) is None
    with pytest.raises(TaskError, match="form='xml'"):
        ToolCall(form="xml")
    with pytest.raises(TaskError, match="arguments=9"):
        ToolCall(arguments=9)


def test_a_step_ends_with_an_argument_and_small_models_can_write_all_of_it():
    task = load_task("toolcall:arguments=4")
    assert task.separator == "," and task.max_tokens == len("f(a=1,b=2,c=3,d=4)") + 2
    tokenizer = character_tokenizer()
    for problem in task.sample(30, "train", np.random.default_rng(0)):
        for text in (problem.prompt, problem.answer):
            assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
