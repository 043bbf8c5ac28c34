"""The rule that makes a winner: its errors over simulated methods, and its words."""

from __future__ import annotations

import numpy as np
import pytest

from upslope.report.compare.verdict import ALPHA, exchange_within_seeds, headline, judge
from upslope.runtime.significance import exchange_test, holm


def decided(scores: list[np.ndarray], paired: bool) -> list[tuple[int, int]]:
    """The wins of the rule, without its intervals, which take longer than all the rest."""
    pairs = [(i, j) for i in range(len(scores)) for j in range(i + 1, len(scores))]
    tests = [exchange_test([scores[i]], [scores[j]], paired) for i, j in pairs]
    return [pair for pair, p in zip(pairs, holm(tests), strict=True) if p <= ALPHA]


def drawn(kind: str, rng: np.random.Generator, methods: int, seeds: int) -> list[np.ndarray]:
    """Scores of equal methods."""
    start = rng.normal(0, 1, seeds)  # what the runs of a seed share
    if kind == "independent":
        return [rng.normal(0, 1, seeds) for _ in range(methods)]
    if kind == "paired":
        return [start + rng.normal(0, 0.5, seeds) for _ in range(methods)]
    if kind == "heavy tails":
        return [rng.standard_cauchy(seeds) for _ in range(methods)]
    return [np.minimum(1.0, np.round(0.97 + 0.02 * (start + rng.normal(0, 1, seeds)), 2)) for _ in range(methods)]  # many ties


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["independent", "paired", "heavy tails", "ties"])
@pytest.mark.parametrize(("methods", "seeds"), [(3, 5), (2, 5), (3, 10), (4, 6)])
def test_equal_methods_have_a_winner_in_at_most_a_twentieth_of_families(kind: str, methods: int, seeds: int) -> None:
    rng = np.random.default_rng(methods * 100 + seeds)
    pairs = methods * (methods - 1) // 2
    paired = exchange_within_seeds(seeds, 1, pairs, True)
    families = 1000
    wrong = sum(bool(decided(drawn(kind, rng, methods, seeds), paired)) for _ in range(families))
    assert wrong / families <= ALPHA


def test_the_bound_would_be_broken_without_the_adjustment() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(1000):
        scores = drawn("independent", rng, 4, 8)
        wrong += any(exchange_test([scores[i]], [scores[j]]) <= ALPHA for i in range(4) for j in range(i))
    assert wrong / 1000 > 2 * ALPHA


@pytest.mark.parametrize(("seeds", "shift", "least"), [(5, 4.0, 0.9), (10, 2.0, 0.7), (20, 1.2, 0.7)])
def test_real_differences_are_found(seeds: int, shift: float, least: float) -> None:
    rng = np.random.default_rng(seeds)
    paired = exchange_within_seeds(seeds, 1, 3, True)
    found = 0
    for _ in range(200):
        scores = drawn("independent", rng, 3, seeds)
        scores[2] += shift
        wins = decided(scores, paired)
        found += (0, 2) in wins and (1, 2) in wins
    assert found / 200 > least


def test_pairing_is_chosen_by_the_numbers_of_runs_alone() -> None:
    assert not exchange_within_seeds(5, 1, 1, True) and not exchange_within_seeds(5, 1, 3, True)
    assert exchange_within_seeds(8, 1, 1, True) and not exchange_within_seeds(8, 1, 3, True)
    assert exchange_within_seeds(10, 1, 3, True) and exchange_within_seeds(5, 2, 3, True)
    assert not exchange_within_seeds(50, 1, 1, False)


# -- the sentences ---------------------------------------------------------------------------------------------------------

FIVE = [0.90, 0.92, 0.94, 0.96, 0.98]


def test_five_seeds_all_better_win_among_three_methods() -> None:
    pairs = judge({"grpo": [[0.1, 0.2, 0.3, 0.4, 0.5]], "gspo": [[0.11, 0.21, 0.31, 0.41, 0.49]], "dhpo": [FIVE]}, True)
    first, second, third = pairs
    assert {first.ours, second.ours} == {"dhpo"} and first.wins and second.wins and not third.wins
    assert first.sentence == "dhpo beats grpo (P = 1.00, interval 0.54 to 1.00)."
    assert first.p == pytest.approx(2 / 252) and first.adjusted == pytest.approx(6 / 252) and not first.paired
    assert first.level == pytest.approx(1 - 0.05 / 3) and third.level == pytest.approx(0.95)
    assert first.bootstrap == (1.0, 1.0)
    assert third.sentence.startswith("gspo and grpo cannot be told apart at 5 seeds (P = 0.5") or third.ours == "grpo"
    assert headline(pairs, ["grpo", "gspo", "dhpo"]) == "dhpo beats both others."


def test_four_seeds_all_better_are_not_enough_among_three() -> None:
    pairs = judge({"a": [[1.0, 2, 3, 4]], "b": [[5.0, 6, 7, 8]], "c": [[9.0, 10, 11, 12]]}, True)
    assert not any(pair.wins for pair in pairs)
    assert pairs[0].sentence.endswith("about 2 more would be needed.") or "more would be needed" in pairs[0].sentence
    assert headline(pairs, ["a", "b", "c"]) == "No method can be told from another."


def test_open_pairs_say_how_many_more_seeds() -> None:
    (pair,) = judge({"a": [[1.0, 2, 3, 4, 5]], "b": [[2.5, 3.5, 4.5, 5.5, 3.2]]}, True)
    assert not pair.wins and pair.ours == "b"
    assert pair.sentence == (
        f"b and a cannot be told apart at 5 seeds (P = {pair.chance:.2f}, interval {pair.low:.2f} to {pair.high:.2f}); "
        f"about {pair.more_seeds} more would be needed."
    )
    assert pair.more_seeds is not None and pair.more_seeds > 10
    (same,) = judge({"a": [[1.0, 2, 3]], "b": [[1.0, 2, 3]]}, True)
    assert same.chance == 0.5 and same.more_seeds is None and not same.wins
    assert same.sentence == "a and b scored the same on every seed: with these settings they seem to do the same."
    (near,) = judge({"a": [[1.0, 2, 3]], "b": [[1.0, 3, 2]]}, True)
    assert "more than 100 would be needed" in near.sentence


def test_one_seed_says_nothing() -> None:
    (pair,) = judge({"a": [[1.0]], "b": [[9.0]]}, True)
    assert pair.sentence == "b and a cannot be told apart: one seed says nothing about others." and not pair.wins


def test_a_small_gain_on_every_seed_wins_seed_by_seed() -> None:
    seeds = list(np.arange(12) * 10.0)
    (pair,) = judge({"a": [seeds], "b": [[value + 1 for value in seeds]]}, True)
    assert pair.wins and pair.paired and pair.low <= 0.5
    assert pair.sentence.startswith("b beats a seed by seed, ahead on 12 of 12 (over all runs P = 0.54")
    (unpaired,) = judge({"a": [seeds], "b": [[value + 1 for value in seeds]]}, False)
    assert not unpaired.wins and unpaired.ahead is None


def test_several_tasks_are_taken_together() -> None:
    pairs = judge({"a": [[1.0, 2, 3], [10.0, 20, 30]], "b": [[4.0, 5, 6], [40.0, 50, 60]]}, True)
    assert pairs[0].wins and pairs[0].chance == 1.0 and pairs[0].p == pytest.approx(2 / 20**2)
    assert pairs[0].ahead == 6 and pairs[0].of == 6


def test_a_chain_of_wins_has_no_overall_winner_unless_it_beats_all() -> None:
    scores = {"a": [list(np.arange(8) + 0.0)], "b": [list(np.arange(8) + 4.0)], "c": [list(np.arange(8) + 100.0)]}
    assert headline(judge(scores, True), list(scores)) == "c beats both others."
    assert headline(judge({"a": [[0.0] * 6], "b": [[1.0] * 6]}, True), ["a", "b"]) == "b beats a."
    assert headline([], ["a"]).startswith("One method")
