"""Which copies of the policy a reference keeps, and with which of them it compares."""

from __future__ import annotations

import pytest

from upslope.objective.references import Snapshot, Start


class Numbered:
    """A policy whose copies say how many there were before."""

    def __init__(self) -> None:
        self.copies = 0

    def frozen_copy(self) -> str:
        self.copies += 1
        return f"copy {self.copies}"


def test_the_start_is_what_the_run_began_with_or_a_copy():
    policy = Numbered()
    assert Start().begin(policy, "first") == ("first",) and policy.copies == 0
    assert Start().begin(policy, None) == ("copy 1",)
    assert Start().renew(("first",), policy) == ("copy 2",)
    assert Start().compared(("first",), policy) == "first" and not Start().due(1) and Start.copies == 1


@pytest.mark.parametrize(("every", "due"), [(1, [2, 3, 4, 5, 6, 7]), (2, [3, 5, 7]), (3, [4, 7])])
def test_a_snapshot_is_compared_with_the_older_of_two(every: int, due: list[int]):
    policy, part = Numbered(), Snapshot(every=every)
    kept = part.begin(policy, "first")
    assert kept == ("copy 1", "copy 2") and part.copies == 2
    assert part.renew(kept, policy) == ("copy 2", "copy 3") and part.compared(kept, policy) == "copy 1"
    assert [step for step in range(1, 8) if part.due(step)] == due


def test_the_newest_snapshot_is_the_only_one_and_compared_with():
    policy, part = Numbered(), Snapshot(every=2, age="newest")
    kept = part.begin(policy, "first")
    assert kept == ("copy 1",) and part.compared(kept, policy) == "copy 1"
    renewed = part.renew(kept, policy)
    assert renewed == ("copy 2",) and part.compared(renewed, policy) == "copy 2"
    assert [step for step in range(1, 8) if part.due(step)] == [3, 5, 7]


def test_without_a_copy_the_policy_itself_is_compared_with():
    policy = Numbered()
    assert Snapshot().compared((), policy) is policy
