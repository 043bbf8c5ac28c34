"""A reward as text: where its weight begins, and which names are code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upslope.errors import UserError
from upslope.runtime import trust
from upslope.runtime.reward_text import RewardText, reward_texts


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("exact", RewardText("exact")),
        ("length:max=200*0.1", RewardText("length:max=200", 0.1)),
        ("mine.py:style*0.3", RewardText("mine.py:style", 0.3)),
        ("mine.py:style * -1e-1", RewardText("mine.py:style", -0.1)),
        ("mine.py:style*0.3 as form", RewardText("mine.py:style", 0.3, "form")),
        ("regex:a*", RewardText("regex:a*")),
        ("regex:a*b", RewardText("regex:a*b")),
        ("regex:a*2", RewardText("regex:a", 2.0)),
        ("regex:a*2*1", RewardText("regex:a*2", 1.0)),
        ("regex:as x", RewardText("regex:as x")),
        ("exact*nan", RewardText("exact*nan")),
        ("exact*1e999", RewardText("exact*1e999")),
        ("*2", RewardText("*2")),
    ],
)
def test_the_weight_is_what_follows_the_last_star_if_that_is_a_number(text, read):
    assert RewardText.parse(text) == read


@given(
    name=st.text(min_size=1).filter(lambda text: text.strip() == text),
    weight=st.floats(-9, 9),
    label=st.sampled_from(["", "a-b", "x_2"]),
)
def test_a_text_reads_back_as_what_wrote_it(name, weight, label):
    written = RewardText(name, weight, label)
    assert RewardText.parse(str(written)) == written


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("my.py:f", True),
        ("a/b-1/my.py:f@0123", True),
        ("regex:my.py:f", False),
        ("json:schema=x.py:y", False),
        ("my.py", False),
        ("exact", False),
    ],
)
def test_a_pattern_is_no_code_whatever_it_holds(name, code):
    assert RewardText(name).is_code is code


@pytest.mark.parametrize(
    "text", ["/evil.py:score@0123456789abcdef*0.5", "exact.py:score*2 as exact", "../x.py:score@0123456789abcdef"]
)
def test_every_reward_of_a_list_is_asked_about_whatever_its_weight(text, tmp_path):
    with pytest.raises(UserError, match="not run"):
        trust.code_of({"task": "sort", "reward": ["exact", text], "method": {}}, tmp_path / "code")
    assert trust.code_of({"task": "sort", "reward": ["regex:/evil.py:score*0.5", "exact"], "method": {}}, tmp_path / "code") == {}


def test_older_runs_have_one_reward_or_an_empty_text():
    assert reward_texts("") == () and reward_texts("exact") == ("exact",) and reward_texts(["a", "b"]) == ("a", "b")
