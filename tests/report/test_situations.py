"""Situations: each has methods that say so themselves, and is found by the words people use."""

from __future__ import annotations

import re

import pytest

from upslope.methods import catalogue
from upslope.report.situations import SITUATIONS, situations_of


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
def test_every_situation_has_methods_and_not_all(situation) -> None:
    found = [name for name, method in catalogue().items() if situation.of(method)]
    assert 2 <= len(found) <= len(catalogue()) / 4, found


def test_most_methods_are_for_some_situation() -> None:
    without = [name for name, method in catalogue().items() if not situations_of(method)]
    assert len(without) <= len(catalogue()) / 10, without


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("my rewards are noisy", "noisy rewards"),
        ("i reuse rollouts", "rollouts are reused"),
        ("off-policy", "stale or off-policy rollouts"),
        ("my answers are long", "long answers"),
        ("entropy collapse", "entropy collapses, diversity matters"),
        ("i have a log", "a log or dataset instead of an environment"),
        ("mixture of experts", "a mixture of experts"),
    ],
)
def test_what_people_say_is_understood(words: str, name: str) -> None:
    meant = [each.name for each in SITUATIONS if re.search(rf"(?<![\w-])(?:{each.asked})(?![\w-])", words)]
    assert meant == [name]


def test_a_method_that_is_as_for_another_is_for_its_situations_too() -> None:
    methods = catalogue()
    assert methods["dhpo-entropy"].use_when.startswith("as for dhpo")
    assert set(situations_of(methods["dhpo"])) <= set(situations_of(methods["dhpo-entropy"]))


def test_pipo_is_for_noisy_rewards_and_reused_rollouts() -> None:
    assert {"noisy rewards", "rollouts are reused"} <= set(situations_of(catalogue()["pipo"]))
