"""The replay store: lanes of what environments showed, the oldest forgotten first."""

from __future__ import annotations

import numpy as np
import pytest

from upslope.experience import store as module
from upslope.experience.episodes import NOT_ACTED
from upslope.experience.sampler import draw
from upslope.experience.store import Lane, ReplayStore
from upslope.types import Ended


def lane(capacity: int) -> Lane:
    return Lane(((1,), np.float32), (), True, capacity)


def play(into: Lane, first: int, steps: int, ended: Ended = Ended.TERMINATED) -> int:
    """An episode whose observations count on; each is paid its number. The number behind its last."""
    into.begin(np.array([first], np.float32))
    for step in range(steps):
        last = step == steps - 1
        into.add(
            np.int64(first + step), float(first + step), int(ended if last else Ended.NO), np.array([first + step + 1], np.float32)
        )
    return first + steps + 1


def whole(kept: Lane) -> list[tuple[float, float, float, int]]:
    """Each decision with what followed it: observation, reward, following, end."""
    found = draw(kept, np.arange(kept.decision_count), 0.9)
    return list(zip(found.observation[:, 0], found.reward, found.following[:, 0], found.ended.tolist(), strict=True))


def test_an_observation_is_kept_once_and_followed_by_the_next():
    made = lane(100)
    play(made, play(made, 0, 2), 2, Ended.TRUNCATED)
    assert made.rows == 6 and made.decision_count == 4
    assert whole(made) == [(0, 0, 1, 0), (1, 1, 2, 1), (3, 3, 4, 0), (4, 4, 5, 2)]
    assert made.columns.ended[[2, 5]].tolist() == [NOT_ACTED, NOT_ACTED]


@pytest.mark.parametrize("length", [1, 3, 7, 50])
@pytest.mark.parametrize("growth", [4, 16])
def test_a_ring_of_any_size_holds_the_newest_decisions(monkeypatch, growth: int, length: int):
    monkeypatch.setattr(module, "GROWTH", growth)
    made, seen, first = lane(20), [], 0
    for _ in range(12):
        following = play(made, first, length)
        seen += [(first + step, first + step, first + step + 1, int(step == length - 1)) for step in range(length)]
        first = following
        assert whole(made) == seen[-20:]
    assert made.decision_count == min(20, len(seen)) and made.acted == len(seen)


def test_a_running_episode_is_cut_where_it_stands():
    made = lane(10)
    made.begin(np.array([0.0], np.float32))
    made.add(np.int64(1), 1.0, int(Ended.NO), np.array([1.0], np.float32))
    made.settle()
    assert whole(made) == [(0, 1, 1, int(Ended.TRUNCATED))]
    made.begin(np.array([7.0], np.float32))
    made.settle()
    assert made.rows == 2, "an observation on which nobody acted is dropped"
    made.settle()
    assert made.rows == 2 and whole(made) == [(0, 1, 1, int(Ended.TRUNCATED))]


@pytest.mark.parametrize("capacity", [5, 100])
def test_rows_written_before_fill_a_lane_again(capacity: int):
    made, again = lane(capacity), lane(capacity)
    everything = lane(1000)
    first = 0
    for length in (3, 1, 6, 2):
        play(everything, first, length)
        first = play(made, first, length)
    columns = everything.columns
    again.refill(*(getattr(columns, name)[: everything.rows] for name in ("observation", "action", "reward", "ended")))
    assert whole(again) == whole(made) and (again.rows, again.acted) == (made.rows, made.acted)
    for each in (made, again):
        play(each, first, 4)
    assert whole(again) == whole(made), "and goes on as the other does"


def test_environments_share_the_capacity():
    made = ReplayStore(((1,), np.float32), (), True, 10, lanes=4)
    assert [each.capacity for each in made.lanes] == [2] * 4
    for number, each in enumerate(made.lanes):
        play(each, 10 * number, 5)
    assert made.decision_count == 8 and made.bytes > 0
