"""The replay store: lanes of what environments showed, the oldest forgotten first."""

from __future__ import annotations

import numpy as np
import pytest

from upslope.experience import store as module
from upslope.experience.episodes import NOT_ACTED
from upslope.experience.sampler import draw, window
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


@pytest.mark.parametrize("capacity", [1, 3, 20, 5000])
@pytest.mark.parametrize("growth", [4, 16])
def test_stacked_frames_are_kept_once_and_seen_whole(monkeypatch, growth: int, capacity: int):
    """A lane of frames against one that keeps every stack as it came; a stack begins with its episode's first frame repeated."""
    monkeypatch.setattr(module, "GROWTH", growth)
    random, shape = np.random.default_rng(0), (3, 2, 2)
    thin, thick = (Lane((shape, np.uint8), (), True, capacity, frames) for frames in (3, 1))
    for _ in range(15):
        frames = [random.integers(0, 256, shape[1:], np.uint8)] * 3
        for each in (thin, thick):
            each.begin(np.stack(frames))
        for _ in range(random.integers(0, 9)):
            frames = [*frames[1:], random.integers(0, 256, shape[1:], np.uint8)]
            ended = int(random.choice([Ended.NO, Ended.NO, Ended.NO, Ended.TERMINATED]))
            for each in (thin, thick):
                each.add(np.int64(1), 1.0, ended, np.stack(frames))
            numbers = np.arange(thin.decision_count)
            for found, wanted in zip(draw(thin, numbers, 0.9, 2), draw(thick, numbers, 0.9, 2), strict=True):
                np.testing.assert_array_equal(found, wanted)
            if ended:
                break
    assert thin.columns.observation.shape[1:] == (2, 2)


def test_a_lane_of_frames_is_filled_again_with_those_before_its_oldest_decision():
    frames, made, log = [np.zeros((1, 1), np.uint8)] * 3, Lane(((3, 1, 1), np.uint8), (), True, 4, 3), [0]
    made.begin(np.stack(frames))
    for number in range(1, 11):
        frames = [*frames[1:], np.full((1, 1), number, np.uint8)]
        made.add(np.int64(number), 0.0, int(Ended.NO), np.stack(frames))
        log.append(number)
    made.settle()
    ended = np.array([Ended.NO] * 9 + [Ended.TRUNCATED, NOT_ACTED], np.int8)
    again = Lane(((3, 1, 1), np.uint8), (), True, 4, 3)
    again.refill(np.array(log, np.uint8).reshape(-1, 1, 1), np.array(log), np.zeros(11, np.float32), ended)
    wanted = [[4, 5, 6], [5, 6, 7], [6, 7, 8], [7, 8, 9]]
    for each in (made, again):
        assert draw(each, np.arange(4), 0.9).observation.reshape(4, 3).tolist() == wanted


def test_a_window_of_stacked_frames_is_of_whole_observations():
    made, frames = Lane(((2, 1, 1), np.uint8), (), True, 10, 2), [np.full((1, 1), 1, np.uint8)] * 2
    made.begin(np.stack(frames))
    for number in (2, 3):
        frames = [frames[1], np.full((1, 1), number, np.uint8)]
        made.add(np.int64(0), 0.0, int(Ended.NO), np.stack(frames))
    found = window(made, np.array([1]), 2)
    assert found.observation[0].reshape(2, 2).tolist() == [[1, 1], [1, 2]]
