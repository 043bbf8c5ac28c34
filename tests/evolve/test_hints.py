"""Ladders of hints."""

import pytest

from upslope.errors import MethodError
from upslope.evolve.hints import AnswerShown, DocumentsShown, SolutionPrefix, TaskHints
from upslope.tasks import load_task
from upslope.tasks.text import Problem

REVERSE = load_task("reverse")


def test_beginnings_of_the_solution_are_rounded_in_characters():
    """Of 5 characters a quarter is 1.25, half 2.5 (rounded to even: 2), three quarters 3.75."""
    problem = Problem("p", "x", {"solution": "abcde"})
    assert SolutionPrefix()(REVERSE, problem) == ("a", "ab", "abcd")
    assert SolutionPrefix(shares=(0.01, 1.0))(REVERSE, problem) == ("abcde",), "an empty beginning helps nobody"


@pytest.mark.parametrize("shares", [(), (0.5, 0.25), (0.5, 0.5), (0.0, 0.5), (0.5, 1.5)])
def test_a_ladder_that_does_not_rise_is_refused(shares):
    with pytest.raises(MethodError, match="each above the last"):
        SolutionPrefix(shares=shares)


def test_a_long_list_of_hints_is_thinned_from_the_weakest_to_the_strongest():
    problem = Problem("p", "x", {"hints": [f"h{n}" for n in range(10)]})

    class Brings:
        hints = staticmethod(lambda problem: problem.hints)

    assert TaskHints(most=4)(Brings, problem) == ("h0", "h3", "h6", "h9")
    assert TaskHints(most=1)(Brings, problem) == ("h9",) and len(TaskHints(most=0)(Brings, problem)) == 10


def test_prompts_with_help_in_them():
    problem = REVERSE.sample(1, "train", __import__("numpy").random.default_rng(0))[0]
    hint = TaskHints()(REVERSE, problem)[1]
    assert hint == problem.answer[:2] and TaskHints().prompt(REVERSE, problem, hint) == f"{hint}:{problem.prompt}"
    assert AnswerShown()(REVERSE, problem) == (problem.answer,) and AnswerShown()(REVERSE, Problem("p")) == ()
    assert DocumentsShown()(REVERSE, Problem("p", info={"documents": ["one", "two"]})) == ("one\ntwo",)


def test_in_a_conversation_the_hint_goes_to_the_users_last_message(tmp_path):
    from upslope.tasks.messages import with_text_behind

    turns = ({"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})
    assert with_text_behind(turns, "!") == (turns[0], {"role": "user", "content": "q!"}, turns[2])
    assert with_text_behind("q", "!") == "q!"
