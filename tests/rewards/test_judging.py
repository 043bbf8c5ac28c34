"""Judges: both orders are asked, each pair once, and what a judge cannot say is counted and never guessed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from upslope.errors import UserError
from upslope.rewards.judging import QUESTION, Judge, JudgeFailed, Verdict, Verdicts, preferred, verdict
from upslope.rewards.preferences import Contest
from upslope.tasks.text import Problem

PROBLEM = Problem("{a} or {b}?")
CONTEST = Contest(PROBLEM, ("bb", "a", "ccc", "a"))


def answers_of(prompt: str) -> tuple[str, str]:
    """The two answers that a question holds."""
    first, _, rest = prompt.partition("\n\nAnswer A:\n")[2].partition("\n\nAnswer B:\n")
    return first, rest.partition("\n\nSay A")[0]


class Shorter:
    """Prefers the shorter answer, and remembers what it was asked."""

    def __init__(self):
        self.asked: list[str] = []

    def __call__(self, asked):
        self.asked += [question.prompt for question in asked]
        return [self.said(*answers_of(question.prompt)) for question in asked]

    def said(self, first, second) -> str | None:
        return "A" if len(first) < len(second) else "B"


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("A", "A"), (" B.\n", "B"), ("Answer B is better.", "B"), ("**A**", "A"), ("A, not B", ""), ("", ""), ("neither", ""),
        ("a", ""), ("BAD", ""), (None, ""),
    ],
)  # fmt: skip
def test_which_letter_is_meant(said, letter):
    assert preferred(said) == letter


@pytest.mark.parametrize(
    ("said", "swapped", "found"),
    [
        ("A", "B", Verdict(1.0)), ("B", "A", Verdict(0.0)),
        ("A", "A", Verdict(0.5, "contradicts")), ("B", "B", Verdict(0.5, "contradicts")),
        ("A", "hm", Verdict(0.75, "unreadable")), ("hm", "A", Verdict(0.25, "unreadable")), ("", "", Verdict(0.5, "unreadable")),
        (None, "B", Verdict(0.75, "timeouts")), ("hm", None, Verdict(0.5, "timeouts")), (None, None, Verdict(0.5, "timeouts")),
    ],
)  # fmt: skip
def test_a_verdict_is_the_mean_of_both_orders(said, swapped, found):
    assert verdict(said, swapped) == found


def test_every_pair_of_texts_is_asked_about_once_in_both_orders():
    asker = Shorter()
    judge = Judge("short", asker, 0.2)
    (chances,), counts = judge.compare([CONTEST])
    assert chances.tolist() == [[0.5, 0, 1, 0], [1, 0.5, 1, 0.5], [0, 0, 0.5, 0], [1, 0.5, 1, 0.5]]
    assert counts == {"pairs": 3, "timeouts": 0, "unreadable": 0, "contradicts": 0}
    assert len(asker.asked) == 6 == len(set(asker.asked))
    assert QUESTION.format(problem="{a} or {b}?", first="bb", second="a") in asker.asked
    # In another order, with one new text among them, only that one is asked about.
    (again,), _ = judge.compare([Contest(PROBLEM, ("dddd", "a", "bb"))])
    assert again.tolist() == [[0.5, 0, 0], [1, 0.5, 1], [1, 0, 0.5]] and len(asker.asked) == 10
    judge.compare([Contest(Problem("another problem"), ("a", "bb"))])
    assert len(asker.asked) == 12


def test_a_judge_that_only_sees_the_place_is_even_and_counted():
    first = Judge("first", lambda asked: ["A"] * len(asked), 1.0)
    (chances,), counts = first.compare([CONTEST])
    assert (chances == 0.5).all() and counts["contradicts"] == 3


def contests(count: int) -> list[Contest]:
    return [Contest(Problem(f"problem {number}"), ("a", "bb")) for number in range(count)]


@pytest.mark.parametrize(
    ("said", "kind", "cure"),
    [(None, "timeouts", "answers again"), ("hm", "unreadable", "another judge"), ("A", "contradicts", "another judge")],
)
def test_a_judge_that_fails_too_often_ends_the_run(said, kind, cure):
    """A quarter of its verdicts fail: allowed at 0.25, not at 0.2; before there are twenty nothing is decided."""

    class Failing(Shorter):
        def __call__(self, asked):
            return [said if int(each.problem.prompt.split()[1]) % 4 == 0 else self.said(*answers_of(each.prompt)) for each in asked]

    Judge("mine", Failing(), 0.25).compare(contests(40))
    Judge("mine", Failing(), 0.2).compare(contests(16))
    with pytest.raises(JudgeFailed, match=rf"mine failed on 10 of the last 40 pairs \(10 {kind}\).*--judge-failures 0.2 .*{cure}"):
        Judge("mine", Failing(), 0.2).compare(contests(40))


def test_verdicts_outlive_the_process(tmp_path):
    """Also one that was killed in the middle of a line: that pair is asked about again, and no other."""
    file, asker = tmp_path / "verdicts.jsonl", Shorter()
    judge = Judge("short", asker, 0.2)
    judge.verdicts.keep_in(file)
    (before,), _ = judge.compare([CONTEST])
    assert len(file.read_text().splitlines()) == 3
    file.write_bytes(file.read_bytes()[:-4])
    again = Judge("short", asker, 0.2)
    again.verdicts.keep_in(file)
    (after,), _ = again.compare([CONTEST])
    assert np.array_equal(before, after) and len(asker.asked) == 6 + 2
    assert len(file.read_text().splitlines()) == 3
    last = Verdicts()
    last.keep_in(file)
    assert last.known == again.verdicts.known


def test_pairs_without_an_answer_are_asked_about_again_after_a_stop(tmp_path):
    """The run stopped as its judge was gone; whoever resumes it asks again, while other verdicts stay."""
    file = tmp_path / "verdicts.jsonl"
    gone = Judge("mine", lambda asked: ["A" if n % 8 == 0 else "B" if n % 8 == 1 else None for n in range(len(asked))], 0.2)
    gone.verdicts.keep_in(file)
    with pytest.raises(JudgeFailed):
        gone.compare(contests(40))
    back = Shorter()
    judge = Judge("mine", back, 0.2)
    judge.verdicts.keep_in(file)
    _, counts = judge.compare(contests(40))
    assert counts["timeouts"] == 0 and len(back.asked) == 2 * 30


@pytest.mark.parametrize("line", ["{}", "[1, 2]", "nonsense", '[1, 2, 3, 7, ""]', '[1, 2, 3, 0.5, "odd"]', "null"])
def test_a_file_that_is_damaged_is_named_with_its_line(tmp_path, line):
    file = tmp_path / "verdicts.jsonl"
    file.write_text(json.dumps([1, 2, 3, 1.0, ""]) + f"\n{line}\n")
    with pytest.raises(UserError, match=r"verdicts\.jsonl, line 2 is no verdict.*Delete that line"):
        Verdicts().keep_in(file)


def test_the_policy_is_another_judge_in_every_step():
    asker = Shorter()
    judge = Judge("policy", None, 0.2)
    for _ in range(2):
        judge.compare([CONTEST], asker)
    assert len(asker.asked) == 12
