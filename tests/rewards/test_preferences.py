"""Who wins: chances between answers are antisymmetric whoever gives them, and the same when they are asked for again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from upslope.errors import TaskError
from upslope.rewards.preferences import Contest, antisymmetric, bradley_terry, compared_by_task, flipped
from upslope.tasks import load_task
from upslope.tasks.text import Problem, WithReward

PROBLEM = Problem("rabc=", "cba")


class LikesTheFirst:
    """Prefers whatever is named first, by nine to one, and shorter answers."""

    name, asked = "likes-the-first", []

    def compare(self, problem, responses):
        self.asked.append(tuple(responses))
        return [[0.9 if len(one) < len(other) else 0.7 for other in responses] for one in responses]


def is_antisymmetric(chances: np.ndarray) -> bool:
    return bool((chances + chances.T == 1).all()) and bool((np.diag(chances) == 0.5).all())


def test_both_orders_are_averaged():
    """A source that says 0.9 and 0.7 for the two orders of a pair means (0.9 + 1 - 0.7) / 2 = 0.6."""
    found = antisymmetric([[0.3, 0.9], [0.7, 0.8]], 2, "it")
    assert found == pytest.approx(np.array([[0.5, 0.6], [0.4, 0.5]])) and is_antisymmetric(found)
    said = np.random.default_rng(0).random((7, 7))
    assert is_antisymmetric(antisymmetric(said, 7, "it"))


def test_bradley_terry_by_hand():
    """Scores 1, 0 and 0.5 at a scale of 0.5: the first beats the second by sigmoid(2) = 0.88, the third by sigmoid(1) = 0.73."""
    found = bradley_terry([1.0, 0.0, 0.5], scale=0.5)
    assert is_antisymmetric(found) and found[0] == pytest.approx([0.5, 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-1))])
    assert found[1, 2] == pytest.approx(1 - 1 / (1 + math.exp(-1)))
    assert np.array_equal(bradley_terry([4.0, 3.0, 3.5], scale=0.5), found)  # a constant for all changes nothing
    assert is_antisymmetric(bradley_terry([1e300, -1e300])) and bradley_terry([1e300, -1e300])[0, 1] == 1


def test_equal_texts_are_even_and_asked_about_once():
    task = LikesTheFirst()
    found = compared_by_task(task, Contest(PROBLEM, ("ab", "c", "ab")))
    assert task.asked == [("ab", "c")] and is_antisymmetric(found)
    assert found[0, 2] == 0.5 and found[0, 1] == found[2, 1] == pytest.approx((0.7 + 1 - 0.9) / 2)


def test_noise_turns_a_share_of_verdicts_round_for_good():
    texts = tuple(f"answer {number}" for number in range(60))
    contest, chances = Contest(PROBLEM, texts), bradley_terry(np.linspace(0, 5, 60))
    once, again = flipped(chances, contest, 0.2, seed=3), flipped(chances, contest, 0.2, seed=3)
    assert is_antisymmetric(once) and np.array_equal(once, again)
    turned = (np.triu(once != chances, 1)).sum() / (60 * 59 / 2)
    assert 0.17 < turned < 0.23  # 1770 pairs: three standard errors are 0.029
    assert np.array_equal(np.where(once != chances, chances.T, chances), once)
    assert not np.array_equal(once, flipped(chances, contest, 0.2, seed=4))
    assert np.array_equal(flipped(chances, contest, 0.0, seed=3), chances)
    assert np.array_equal(flipped(chances, contest, 1.0, seed=3), chances.T)
    # The order in which the answers stand changes no verdict.
    back = Contest(PROBLEM, texts[::-1])
    assert np.array_equal(flipped(chances[::-1, ::-1], back, 0.2, seed=3), once[::-1, ::-1])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([[0.5, 1.2], [0.1, 0.5]], "the chance 1.2"),
        ([[0.5, math.nan], [0.1, 0.5]], "the chance nan"),
        ([[0.5, 0.5]], "2 rows of 2 chances"),
        ("yes", "2 rows of 2 chances"),
        ([["a", "b"], ["c", "d"]], "2 rows of 2 chances"),
    ],
)
def test_what_is_no_chance_is_refused(said, told):
    with pytest.raises(TaskError, match=told):
        antisymmetric(said, 2, "'compare' of mine")


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(TaskError, match="earned nan"):
        bradley_terry([0.0, math.nan])


def test_a_task_says_whether_it_compares(tmp_path):
    """Of a task of the user's own the hook is enough; under another reward that decides; a mixture compares if all its parts do."""
    plain = load_task("reverse")
    assert not plain.compares and "comparisons" not in plain.gives()
    file = tmp_path / "mine.py"
    file.write_text(
        "from upslope.tasks import Problem, Scores, TextTask\n"
        "class Short(TextTask):\n"
        "    name, max_tokens = 'short', 4\n"
        "    def sample(self, count, split, rng): return [Problem('x')] * count\n"
        "    def score(self, problems, responses): return Scores([0.0] * len(responses), [False] * len(responses))\n"
        "    def describe(self): return 'Short answers are better.'\n"
        "    def compare(self, problem, responses): return [[float(len(a) < len(b)) for b in responses] for a in responses]\n"
    )
    own = load_task(f"{file}:Short")
    assert own.compares and "comparisons" in own.gives()
    assert compared_by_task(own, Contest(PROBLEM, ("a", "bb")))[0, 1] == 1
    rewarded = WithReward(own, lambda prompts, responses, answers: [0.0] * len(responses))
    assert not rewarded.compares and "comparisons" not in rewarded.gives()
