"""Rewards that need no code: tables of responses, expected answers and what they are worth, with those that try to cheat."""

from __future__ import annotations

import json
import math
import sys
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from upslope.errors import MissingExtra
from upslope.rewards import RewardError, load_reward

LETTERS = {"choices": ["London", "Paris", "Rome", "Oslo"]}
COLUMNS = {"A": "London", "B": "Paris", "C": "Rome", "D": "Oslo"}

RIGHT = {
    "exact": [
        (" 12\n", "12"), ("12", "She has 3 * 4 = 12.\n#### 12"), ("x+1", "so \\boxed{x+1}"),
        ("<think>hm</think><answer> 12 </answer>", "12"),
    ],
    "contains": [
        ("The capital is Paris, of course.", "paris"), ("It is 4.", "4"), ("It is 4, I think", "4"),
        ("new  york it is", "New York"),
        ("<think>Rome?</think>Paris", "Paris"), ("12", "#### 12"), ("(4)", "4"),
    ],
    "number": [
        ("17 + 85 is 102.", "102"), ("The sum of 17 and 85 is **102**.", "102"), ("$1,234.50", "1234.5"), ("-7", "−7"),
        ("= -7", "-7"),
        ("about 50%", "50"), ("0.5", "50%"), ("50%", "0.5"), ("3/4", "0.75"), ("\\frac{3}{4}", "3/4"), ("1 1/2 cups", "1.5"),
        ("1.2e3", "1200"), ("1.2 \\times 10^{3}", "1,200"), ("10^3", "1000"), ("72", "48/2 = 24 and 48+24 = 72\n#### 72"),
        ("\\boxed{5}", "5"),
        ("<think>9</think> 5", "5"), ("<answer>5</answer> (that was 1 of 9)", "5"), ("12.", "12"), ("10-5", "5"), ("007", "7"),
        ("123456789012345678901", "123456789012345678901"), (".5", "1/2"), ("-$5", "-5"), ("1{,}000", "1000"),
        ("0.3333333", "1/3"),
    ],
    "boxed": [
        ("so \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("\\boxed{ \\dfrac{1}{2} }", "\\frac12 = \\boxed{\\frac{1}{2}}"),
        ("\\boxed{1,000}", "1000"),
        ("\\boxed{3} no, \\boxed{4}", "4"), ("\\boxed{4} and \\boxed{", "4"), ("\\boxed{\\text{yes}}", "yes"),
        ("\\boxed{x^{2}}", "x^{2}"),
        ("\\boxed{0.5}", "1/2"), ("\\boxed{\\left(1, 2\\right)}", "(1,2)"), ("\\boxed {7}", "7"), ("\\boxed{42}", "#### 42"),
    ],
    "regex:answer is (\\d+)": [("the answer is 7", "7"), ("answer is 1, no: answer is 7", "7"), ("answer is 7", "#### 7")],
    "choice": [
        ("B", "B"), ("b", "B"), ("(B)", "B"), ("B)", "B"), ("**B**", "B"), ("B. Paris", "B"), ("The answer is (B).", "B"),
        ("Answer: **B**", "(B)"),
        ("The correct option is B because it is.", "B"), ("\\boxed{B}", "B"), ("\\boxed{\\text{B}}", "B"), ("Paris", "B"),
        ("It is Paris.", "B"),
        ("B", "Paris"), ("B", "1"), ("The answer is A. No, the answer is B.", "B"), ("So the answer is: B) Paris", "B"),
        ("the answer is b", "B"),
        ("<think>A or C</think><answer>B</answer>", "B"), ("I choose (B), as it is the capital.", "B"), ("paris.", "b"),
    ],
}  # fmt: skip
WRONG = {
    "exact": [("12.", "12"), ("1 2", "12"), ("", "12"), ("<think>12", "12"), ("<answer></answer>", "12"), ("12 13", "12")],
    "contains": [
        ("14", "4"), ("3.4", "4"), ("4.5", "4"), ("4,000", "4"), ("-4", "4"), ("Parisian", "Paris"), ("", "x"),
        ("<think>Paris", "Paris"),
    ],
    "number": [
        ("1", "-1"), ("-102", "102"), ("102 or 103", "102"), ("one hundred and two", "102"), ("", "102"), ("x102", "102"),
        ("1/0", "0"),
        ("1000001", "1000000"), ("9" * 5000, "9"), ("<think>102", "102"), ("102", "yes"), ("0.34", "1/3"), ("50", "0.5"),
        ("123456789012345678901", "123456789012345678902"), ("1e-9", "1e9"), ("NaN inf", "102"),
    ],
    "boxed": [
        ("4", "4"), ("\\boxed{}", "4"), ("\\boxed{5}", "4"), ("\\boxed{4", "4"), ("\\boxed{4} \\boxed{5}", "4"),
        ("\\boxed{4 or 5}", "4"),
    ],
    "regex:answer is (\\d+)": [
        ("the answer is 8", "7"), ("answer is", "7"), ("7", "7"), ("answer is 7, no: answer is 8", "7"), ("", "7"),
    ],
    "choice": [
        ("A", "B"), ("A B C D", "B"), ("The answer is A or B.", "B"), ("(A) (B) (C) (D)", "B"), ("London and Paris", "B"),
        ("", "B"),
        ("A dog barks.", "A"), ("an answer a child gives", "A"), ("Both A and B", "B"), ("The answer is B, C", "B"),
        ("B-movies", "B"),
        ("Paris, London, Rome, Oslo", "B"), ("none", "B"), ("(A) no, (B) yes", "A"),
    ],
}  # fmt: skip
FORM = {
    "json": [
        ('{"a": 1}', 1), ("[1, 2]", 1), ("```json\n{}\n```", 1), ("Here:\n```\n[1]\n```\nDone.", 1), ("{", 0), ("", 0),
        ("NaN", 0),
             ("[" * 100_000, 0), ("{} {}", 0), ("```\nnot\n```", 0), ("```\n[1]\n``` and ```\n[2", 1), ("9" * 6000, 0)],
    "regex:^\\d+$": [("12", 1), ("12 ", 0), ("x", 0)],
    "regex:a:b": [("xa:by", 1), ("ab", 0)],
    "format:think,answer": [
        ("<think>a</think><answer>b</answer>", 1), ("well <think>a</think>\n<answer>b</answer>", 1),
        ("<think></think><answer>b</answer>", 0),
        ("<think>a</think><answer> \n</answer>", 0), ("<answer>b</answer><think>a</think>", 0),
        ("<think>a<answer>b</answer></think>", 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0), ("<think><think>a</think><answer>b</answer>", 0), ("", 0),
        ("</think>a<think><answer>b</answer>", 0),
    ],
    "format:answer": [("<answer>b</answer>", 1), ("b", 0)],
    "length:max=4": [("a b c", 1), ("a b c d", 1), ("a b c d e f", 0.5), ("a " * 99, 0), ("", 1)],
    "length:min=4": [("a b", 0.5), ("a " * 9, 1), ("", 0)],
    "length:max=4,unit=characters": [("abcd", 1), ("abcdef", 0.5)],
    "repetition": [("a b c d e", 0), ("", 0), ("a b", 0), ("a b c a b c", -0.25), ("no " * 100, 1 / 98 - 1)],
    "repetition:words=1": [("a a a a", -0.75), ("a b", 0)],
}  # fmt: skip


def worth(name: str, response: str, answer: str = "", info: dict | None = None) -> float:
    reward, further = load_reward(name), {"infos": [info or {}]} if name == "choice" else {}
    (value,) = reward(["p"], [response], [answer], **further)
    return value


def table(rows: dict) -> list:
    return [pytest.param(name, *row, id=f"{name}: {row[0][:30]!r}") for name, some in rows.items() for row in some]


@pytest.mark.parametrize(("name", "response", "answer"), table(RIGHT))
def test_a_right_answer_is_found_however_it_is_said(name, response, answer):
    assert worth(name, response, answer, LETTERS) == 1.0


@pytest.mark.parametrize(("name", "response", "answer"), table(WRONG))
def test_a_wrong_answer_is_worth_nothing(name, response, answer):
    assert worth(name, response, answer, LETTERS) == 0.0


@pytest.mark.parametrize(("name", "response", "value"), table(FORM))
def test_the_form_of_a_response_is_paid(name, response, value):
    assert worth(name, response) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "info",
    [
        LETTERS,
        COLUMNS,
        {"options": {"A": "London", "B": "Paris"}},
        {"choices": {"text": ["London", "Paris"]}},
        {"options": ["A) London", "B) Paris"]},
    ],
)
def test_options_are_found_in_the_columns_that_data_have(info):
    assert worth("choice", "I would say Paris.", "B", info) == 1.0 and worth("choice", "London", "B", info) == 0.0
    assert worth("choice", "Paris", "B") == 0.0


NAMES = ["exact", "contains", "number", "boxed", "choice", "json", "regex:(a+)b", "format", "length:min=2,max=9", "repetition"]
PIECES = st.sampled_from(["\\boxed{", "}", "<think>", "</think>", "<answer>", "</answer>", "1,0", "-", "1e9", "/", "0", "%", "(A)",
                          "**", "$", "answer is ", "```", "{", "####", "\\frac{1}{", "10^", "\n", "\x00", "٣", "𝟙",
                          "\ud800"])  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(PIECES).map("".join))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(response=TEXTS, answer=TEXTS)
@example(response="", answer="")
def test_nothing_raises_and_all_is_between_minus_one_and_one(name, response, answer):
    value = worth(name, response, answer, LETTERS)
    assert isinstance(value, float) and math.isfinite(value) and -1 <= value <= 1


@pytest.mark.parametrize("name", NAMES)
def test_no_response_takes_long(name):
    """Linear in a response of 40,000 characters; what is not would take minutes for some of these."""
    began = time.process_time()
    for piece in ("\\boxed{", "answer ", "answer" + " " * 50, " ", "```\n", "1,", "1 ", "(A)", "<think>", "9", "{", "- "):
        worth(name, piece * (40_000 // len(piece)), "B", LETTERS)
    assert time.process_time() - began < 10


def test_a_tolerance_widens_what_counts_as_equal():
    assert worth("number", "3.14", "3.14159") == 0.0 and worth("number:tolerance=0.01", "3.14", "3.14159") == 1.0


def test_a_json_schema_is_met_or_not(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}))
    name = f"json:schema={file}"
    assert [worth(name, text) for text in ('{"name": "x"}', '{"name": 1}', "[]", "no")] == [1.0, 0.0, 0.0, 0.0]


def test_without_jsonschema_its_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "s.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtra, match=r"jsonschema is not installed[\s\S]*\[text\]"):
        load_reward(f"json:schema={tmp_path / 's.json'}")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("numbr", "no reward named 'numbr'. Did you mean 'number'"),
        ("number:tol=1", "number has no option 'tol'. Did you mean 'tolerance'? Its options: tolerance."),
        ("number:tolerance=-1", "must be a finite number of 0 or above"),
        ("number:tolerance=inf", "must be a finite number of 0 or above"),
        ("number:tolerance=x", "tolerance is 'x'; it must be a number."),
        ("number:tolerance", "'tolerance' is not of the form option=value"),
        ("exact:x=1", "exact has no option 'x'. It has none."),
        ("length", "length has max=0 and min=0; give one or both, as in length:min=20,max=200."),
        ("length:min=9,max=3", "length has max=3 and min=9"),
        ("length:max=3,max=4", "'max=4' is given twice"),
        ("length:max=3,unit=pages", "it must be one of words, characters."),
        ("repetition:words=0", "repetition:words=0 must be 1 or more"),
        ("regex:(", "regex:( is no pattern:"),
        ("regex:", "lacks the pattern behind the colon"),
        ("regex", "lacks the pattern behind the colon"),
        ("format:think,think", "names a tag twice"),
        ("format:think,<b>", "has the tag '<b>'"),
        ("json:schema=no.json", "no file 'no.json' for json:schema"),
        ("tests:second=3", "tests has no option 'second'. Did you mean 'seconds'? Its options: seconds, memory."),
    ],
)
def test_what_is_wrong_in_a_name_is_said(name, told):
    with pytest.raises(RewardError) as caught:
        load_reward(name)
    assert told in str(caught.value)


def test_a_file_that_is_no_schema_is_refused(tmp_path):
    for text in ("{", '{"type": 3}', "3"):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(RewardError, match="is no JSON schema"):
            load_reward(f"json:schema={tmp_path / 's.json'}")


def test_only_a_pattern_with_a_group_needs_an_answer():
    assert load_reward("regex:(a)").needs_answer and not load_reward("regex:a").needs_answer
