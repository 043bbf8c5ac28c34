"""Who beats whom: one rule, used by the sentence, the table and the page alike.

For each pair of methods the figure is the probability of improvement over all their runs. Whether it differs from a half is
decided by an exact permutation test of it: labels are exchanged between runs of the same seed once there are so many that this can
decide, and among all runs of a task below that. The p of all pairs are adjusted for their number by Holm's method. At most 0.05 is
a win, and nothing else is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from upslope.runtime.significance import (
    bootstrap_improvement_interval,
    exchange_test,
    holm,
    improvement_interval,
    least_p,
    paired_seeds_needed,
    probability_of_improvement,
    seeds_needed,
)
from upslope.runtime.statistics import bootstrap_generator, bootstrap_interval, percentile_interval

ALPHA = 0.05
"""Chance, at most, that any win is declared between methods that are equal."""
POWER = 0.8
CLEAR = 0.01
"""Pairs of runs are used once the clearest outcome they allow would have an adjusted p of at most this."""

Scores = Mapping[str, Sequence[Sequence[float]]]
"""By label, for each task the scores of its runs, in the order of seeds."""


@dataclass(frozen=True)
class Pair:
    """Two methods; ``ours`` is the one that is ahead, if either is."""

    ours: str
    theirs: str
    chance: float
    """P: that a run of ours is better than one of theirs."""
    low: float
    high: float
    """Score interval of it at ``level``."""
    level: float
    bootstrap: tuple[float, float]
    """rliable's 95% interval of it."""
    p: float
    adjusted: float
    paired: bool
    """Whether the test exchanged labels within seeds."""
    difference: float
    """Mean of ours minus theirs, of the normalised scores where there are several tasks."""
    difference_low: float
    difference_high: float
    ahead: int | None
    """Of ``of`` seeds, those on which ours was better; None if the seeds differ."""
    of: int
    seeds: int
    """Fewest runs on a task, of either."""
    same: bool
    """Whether the two scored exactly the same on every seed."""
    wins: bool
    more_seeds: int | None
    """How many more would decide, if P stays; None: more than are counted, or a win."""
    sentence: str = ""


def exchange_within_seeds(seeds: int, tasks: int, pairs: int, same_seeds: bool) -> bool:
    """Whether the test may use the pairing; decided by the numbers of runs alone, never by their scores."""
    return same_seeds and least_p(seeds, tasks, paired=True) * pairs <= CLEAR


def judge(scores: Scores, same_seeds: bool, normalised: Scores | None = None) -> list[Pair]:
    """Every pair of methods under the rule, wins first.

    Args:
        same_seeds: whether run ``i`` on a task has the same seed in every method.
        normalised: what the differences are of, where it is not the scores themselves.
    """
    sides = []
    for first, second in itertools.combinations(scores, 2):
        chance = probability_of_improvement(scores[first], scores[second])
        sides.append((first, second) if chance >= 0.5 else (second, first))
    tests = []
    for ours, theirs in sides:
        paired = exchange_within_seeds(_fewest(scores, ours, theirs), len(scores[ours]), len(sides), same_seeds)
        tests.append((exchange_test(scores[ours], scores[theirs], paired), paired))
    adjusted = holm([p for p, _ in tests])
    won = sum(value <= ALPHA for value in adjusted)
    found = []
    for both, (p, paired), after in zip(sides, tests, adjusted, strict=True):
        # The level at which Holm's method tests this pair; those that fall with the first failure share its level.
        alpha = ALPHA / (len(sides) - min(sum(other < p for other, _ in tests), won))
        found.append(_pair(scores, normalised or scores, both, p, paired, after, alpha, same_seeds, len(sides)))
    return sorted(found, key=lambda pair: (not pair.wins, pair.adjusted, -pair.chance))


def _pair(
    scores: Scores,
    normalised: Scores,
    sides: tuple[str, str],
    p: float,
    paired: bool,
    adjusted: float,
    alpha: float,
    same: bool,
    pairs: int,
) -> Pair:
    ours, theirs = (scores[label] for label in sides)
    chance = probability_of_improvement(ours, theirs)
    low, high = improvement_interval(chance, [(len(x), len(y)) for x, y in zip(ours, theirs, strict=True)], 1 - alpha)
    difference, interval = _difference(normalised[sides[0]], normalised[sides[1]], same)
    couples = [(x, y) for xs, ys in zip(ours, theirs, strict=True) for x, y in zip(xs, ys, strict=False)] if same else []
    seeds, wins = _fewest(scores, *sides), adjusted <= ALPHA
    needed = None if wins or seeds < 2 else _needed(ours, theirs, chance, alpha, same, pairs)
    more = None if needed is None else max(1, needed - seeds)
    pair = Pair(
        *sides, chance, low, high, 1 - alpha, bootstrap_improvement_interval(ours, theirs), p, adjusted, paired,
        difference, *interval, sum(x > y for x, y in couples) if same else None, len(couples), seeds,
        bool(couples) and all(x == y for x, y in couples), wins, more,
    )  # fmt: skip
    return Pair(**{**pair.__dict__, "sentence": sentence(pair, len(ours))})


def _needed(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], chance: float, alpha: float, same: bool, pairs: int
) -> int | None:
    """Seeds after which the test would decide, by the smaller of two estimates: with labels exchanged among all runs of a task,
    and within seeds, from as many on as the rule takes for that."""
    found = [seeds_needed(chance, alpha, POWER, len(ours))]
    if same:
        within = paired_seeds_needed(ours, theirs, alpha, POWER)
        while within is not None and not exchange_within_seeds(within, len(ours), pairs, same):
            within += 1
        found.append(within)
    return min((each for each in found if each is not None), default=None)


def _difference(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], same: bool
) -> tuple[float, tuple[float, float]]:
    """Mean of ours minus theirs with a 95% bootstrap interval: over seeds where they are the same, else over the runs of each."""
    if same:
        each = np.concatenate([np.asarray(x) - np.asarray(y) for x, y in zip(ours, theirs, strict=True)])
        return float(each.mean()), bootstrap_interval(each)
    rng = bootstrap_generator(0)
    drawn = np.zeros(2000)
    mean = 0.0
    for xs, ys in zip(ours, theirs, strict=True):
        mean += float(np.mean(xs) - np.mean(ys)) / len(ours)
        for side, sign in ((np.asarray(xs), 1), (np.asarray(ys), -1)):
            drawn += sign * side[rng.integers(0, len(side), (2000, len(side)))].mean(1) / len(ours)
    return mean, percentile_interval(drawn.tolist(), 0.95)


def _fewest(scores: Scores, *labels: str) -> int:
    return min(len(runs) for label in labels for runs in scores[label])


# -- in words --------------------------------------------------------------------------------------------------------------


def sentence(pair: Pair, tasks: int = 1) -> str:
    """The pair in a plain sentence."""
    figure = f"P = {pair.chance:.2f}, interval {pair.low:.2f} to {pair.high:.2f}"
    if pair.wins:
        if pair.low <= 0.5 and pair.ahead is not None:  # a small gain, the same on nearly every seed
            return f"{pair.ours} beats {pair.theirs} seed by seed, ahead on {pair.ahead} of {pair.of} (over all runs {figure})."
        return f"{pair.ours} beats {pair.theirs} ({figure})."
    if pair.same and pair.seeds > 1:
        return f"{pair.ours} and {pair.theirs} scored the same on every seed: with these settings they seem to do the same."
    if pair.seeds < 2:
        return f"{pair.ours} and {pair.theirs} cannot be told apart: one seed says nothing about others."
    on_each = " per task" if tasks > 1 else ""
    more = f"about {pair.more_seeds} more" if pair.more_seeds is not None else "more than 100"
    return f"{pair.ours} and {pair.theirs} cannot be told apart at {pair.seeds} seeds{on_each} ({figure}); {more} would be needed."


def headline(pairs: Sequence[Pair], labels: Sequence[str]) -> str:
    """The answer in a line: whoever beats all others, or that nobody does."""
    if len(labels) < 2:
        return "One method: nothing to compare it with."
    beaten = {label: {pair.theirs for pair in pairs if pair.wins and pair.ours == label} for label in labels}
    for label in labels:
        if len(beaten[label]) == len(labels) - 1:
            others = {2: next(iter(beaten[label])), 3: "both others"}.get(len(labels), "all others")
            return f"{label} beats {others}."
    if not any(beaten.values()):
        return "No method can be told from another." if len(labels) > 2 else "The two cannot be told apart."
    unbeaten = [label for label in labels if not any(label in losers for losers in beaten.values())]
    return f"No method beats all others; not beaten by any: {', '.join(unbeaten)}."


NAMED_PAIRS = 2
"""Pairs without a winner that the first sentence names; more are counted."""


def finding(learning: str, answer: str, pairs: Sequence[Pair]) -> str:
    """What was found and what was not, to stand before all else.

    Args:
        learning: whether anything was learned.
        answer: who beats whom.
    """
    first = "" if answer.startswith(learning) else f"{learning} "
    undecided = [pair for pair in pairs if not pair.wins]
    if not undecided or len(undecided) == len(pairs):  # with no winner at all the answer says so itself
        return first + answer
    if len(undecided) <= NAMED_PAIRS:
        rest = ", ".join(f"{pair.ours} and {pair.theirs}" for pair in undecided) + " cannot be told apart"
    else:
        rest = f"{len(undecided)} of {len(pairs)} pairs cannot be told apart"
    return f"{first}{answer.rstrip('.')}; {rest}."
