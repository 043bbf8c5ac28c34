"""Verifiers: exact match and math-verify, also on answers that are bombs."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from upslope.errors import MissingExtra
from upslope.rewards import load_reward


def test_exact_match_strips_and_nothing_more():
    assert load_reward("exact")(["p"] * 4, [" 12\n", "12.", "1 2", ""], ["12"] * 4) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("response", "answer", "equal"),
    [
        ("So it is \\boxed{0.5}.", "\\frac{1}{2}", True),
        ("1+x", "x+1", True),
        ("the answer is $\\frac{2}{4}$", "1/2", True),
        ("42", "42", True),
        ("B", "B", True),
        ("the answer is 41", "42", False),
        ("1+x", "x+2", False),
        ("", "42", False),
        ("(" * 3000, "7", False),
        ("\\boxed{" * 300, "7", False),
        ("\x00\ud800", "7", False),
        ("1" * 5000, "7", False),
    ],
)
def test_math_verify(response, answer, equal):
    assert load_reward("math-verify")(["p"], [response], [answer]) == [float(equal)]


@pytest.mark.parametrize("bomb", ["$9^{9^{9^{9}}}$", "$9^9^9^9$", "$10000000!$", "$2^{99999999}$", "9**9**9**9"])
def test_math_verify_survives_bombs_outside_of_the_main_thread(bomb):
    found = []
    started = time.monotonic()
    thread = threading.Thread(
        target=lambda: found.extend(load_reward("math-verify")(["p"] * 2, [bomb, "0.5"], ["1/2"] * 2)), daemon=True
    )
    thread.start()
    thread.join(30)
    assert found == [0.0, 1.0]
    assert time.monotonic() - started < 20


def test_math_verify_has_a_time_limit_in_the_main_thread():
    reward = load_reward("math-verify")
    started = time.monotonic()
    assert type(reward)(seconds=1)(["p"], ["$9^{9^{9^{9}}}$"], ["7"]) == [0.0]
    assert time.monotonic() - started < 10


def test_a_missing_math_verify_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtra, match=r"pip install -e '.*\[text\]'"):
        load_reward("math-verify")(["p"], ["1"], ["1"])
