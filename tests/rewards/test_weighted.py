"""Several rewards as one: sums, components, what is correct, and what Python may give."""

from __future__ import annotations

import functools
import math
import sys

import pytest

from upslope.rewards import ExactMatch, Number, Regex, RewardError, WeightedRewards, kept_or_held, load_reward
from upslope.tasks.text import Problem, call_reward, correct_ones

PROBLEMS = [Problem("1+1?", "2"), Problem("2+2?", "4")]
MINE = "SCALE = 1.0\ndef style(prompts, responses, answers):\n    return [SCALE * len(r) for r in responses]\n"


def short(prompts, responses, answers):
    return [float(len(response) < 3) for response in responses]


def paid(given, responses=("2", "it is 5")):
    return call_reward(load_reward(given), PROBLEMS, responses)


def test_rewards_are_summed_by_weight_and_each_is_a_component():
    rewards, components = paid(["exact", "length:max=1*0.5", "repetition*-2"])
    assert rewards == [1.5, 0.0]
    assert components == {"exact": [1.0, 0.0], "length": [1.0, 0.0], "repetition": [0.0, 0.0], "correct": [1.0, 0.0]}


def test_one_reward_alone_is_what_it_was():
    assert isinstance(load_reward("exact"), ExactMatch) and paid("exact") == ([1.0, 0.0], {})
    assert paid("exact*2") == ([2.0, 0.0], {"exact": [1.0, 0.0], "correct": [1.0, 0.0]})


def test_two_of_one_name_are_told_apart():
    assert set(paid(["length:max=1", "length:max=3", "exact", "exact"])[1]) == {"length", "length_2", "exact", "exact_2", "correct"}

    def reward(prompts, responses, answers):
        return [0.0] * len(responses)

    assert set(paid([reward, "exact"])[1]) == {"reward_2", "exact", "correct"}


def test_a_reward_that_does_not_apply_is_left_out_of_the_sum():
    def sometimes(completions, **columns):
        return [None, 1.0]

    rewards, components = paid({"some": (sometimes, 3.0), "number": "number"})
    assert rewards == [1.0, 3.0] and math.isnan(components["some"][0])


def judged(prompts, responses, answers):
    return {"reward": [0.3] * len(responses), "correct": [0.0, 1.0], "style": [0.1, 0.2]}


@pytest.mark.parametrize(
    ("given", "correct"),
    [
        (["length:max=1", "number"], [True, False]),  # the first that compares with the answer
        ([judged, "number"], [False, True]),  # what says so itself
        ([short, "length:max=1*-1"], [True, False]),  # the only function
        ([short, short, "length:max=1*-1"], [True, False]),  # full marks of the sum
        ([short, short, "length:max=1*-2"], [False, False]),
    ],
)
def test_what_is_correct_among_several(given, correct):
    assert correct_ones(*paid(given)) == correct


def test_components_of_a_component_have_its_name():
    assert set(paid([judged, "exact"])[1]) == {"judged", "judged_style", "exact", "correct"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (3, "3 (int) is no reward. Give a function, a name"),
        ([None], "None (NoneType) is no reward"),
        ({"a": ("exact", 1, 2)}, "the reward 'a' is a tuple of 3; give (function or name, weight)."),
        ({"a": ("exact", "2")}, "the reward 'a' has the weight '2'; it must be a finite number."),
        ({"a": ("exact", math.nan)}, "the weight nan"),
        ({"a": ("exact", True)}, "the weight True"),
        ({"a b": "exact"}, "a reward is called 'a b'; its name must be letters"),
        ({3: "exact"}, "a reward is called 3"),
        (ExactMatch, "ExactMatch is a class; give one of it"),
        (("exact", 0.5), "0.5 (float) is no reward"),
        (["exact", " "], "a reward is empty"),
        (["exact", "numbr"], "no reward named 'numbr'"),
        (object(), "is no reward"),
        ([], "without a reward in it"),
        ({}, "without a reward in it"),
    ],
)
def test_anything_else_is_refused_in_words(given, told):
    with pytest.raises(RewardError) as caught:
        load_reward(given)
    assert told in str(caught.value)


def test_names_and_built_in_values_are_kept_as_text():
    texts, held = kept_or_held({"right": Number(tolerance=0.1), "form": ("regex:a*2*1", 0.5), "x": Regex("b"), "y": ("exact", 2)})
    assert held is None
    assert texts == ("number:tolerance=0.1*1.0 as right", "regex:a*2*0.5 as form", "regex:b*1.0 as x", "exact*2.0 as y")
    assert [part.weight for part in load_reward(list(texts)).parts] == [1.0, 0.5, 1.0, 2.0]
    assert kept_or_held("") == kept_or_held(None) == kept_or_held(()) == ((), None)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "reward_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    import reward_of_mine

    yield reward_of_mine
    del sys.modules["reward_of_mine"]


def test_a_function_of_a_file_is_kept_by_its_file(mine):
    texts, held = kept_or_held([mine.style, "exact"])
    assert held is None and texts == (f"{mine.__file__}:style", "exact")
    assert kept_or_held({"form": (mine.style, 0.5)})[0] == (f"{mine.__file__}:style*0.5 as form",)
    assert paid(texts)[1]["style"] == [1.0, 7.0]


class Pays:
    def __call__(self, prompts, responses, answers):
        return [0.0] * len(responses)

    def method(self, prompts, responses, answers):
        return [0.0] * len(responses)


def test_what_no_file_defines_is_held(mine):
    def closure(prompts, responses, answers):
        return [float(len(PROBLEMS)) for _ in responses]

    anonymous = lambda prompts, responses, answers: [0.0] * len(responses)  # noqa: E731
    for given, label in (
        (closure, "closure"), (anonymous, "lambda"), (functools.partial(mine.style), "style"), (Pays(), "Pays"),
        (Pays().method, "method"),
    ):  # fmt: skip
        texts, held = kept_or_held(given)
        assert texts == (label,) and held is not None
    texts, held = kept_or_held({"a": (closure, 0.5), "b": mine.style})
    assert texts == ("a", "b") and isinstance(held, WeightedRewards)


def test_a_script_that_would_train_again_is_not_loaded_for_its_function(tmp_path, monkeypatch):
    from types import ModuleType

    for guard, kept in (("if __name__ == '__main__':\n    ", True), ("", False)):
        script = tmp_path / f"script{len(guard)}.py"
        script.write_text(f"import json\n{MINE}\n{guard}raise SystemExit('trained again')\n")
        module = ModuleType("__main__")
        module.__file__ = str(script)
        exec(compile(MINE, str(script), "exec"), vars(module))
        monkeypatch.setitem(sys.modules, "__main__", module)
        texts, held = kept_or_held(module.style)
        assert (held is None) is kept and texts == ((f"{script}:style",) if kept else ("style",))


def accuracy(completions, solution, **columns):
    return [float(said == right) for said, right in zip(completions, solution, strict=True)]


def short(completions, **columns):
    return [-len(said) / 10 for said in completions]


def graded(prompts, responses, answers):
    return [0.5 for _ in responses]


@pytest.mark.parametrize(
    ("rewards", "correct"),
    [
        ({"acc": accuracy, "short": (short, 0.1)}, [1.0, 0.0]),  # by its parameter, whatever the sum is
        ({"short": short, "acc": accuracy}, [1.0, 0.0]),
        (["format:a", accuracy], [1.0, 0.0]),
        ({"only": graded, "length": "length:max=9"}, [0.0, 0.0]),  # the only one that is no built-in
        ({"exact": "exact", "acc": short}, [1.0, 0.0]),
    ],
)
def test_what_is_right_is_said_by_the_reward_that_compares_with_the_answer(rewards, correct):
    reward = load_reward(rewards)
    assert reward(["1+1=", "1+2="], ["2", "4"], ["2", "3"])["correct"] == correct
