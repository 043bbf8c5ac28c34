"""Every rule of the sampler against a table written by hand, on a 3-step episode that terminates and one that is cut."""

import numpy as np
import pytest

from upslope.experience import Episode, Episodes
from upslope.experience.episodes import NOT_ACTED
from upslope.experience.sampler import chunk, draw, joined, returns_to_go, window
from upslope.experience.store import DatasetRows, Lane, ReplayStore
from upslope.types import Ended

GAMMA = 0.5
ENDS = Episode(np.array([[0.0], [1], [2], [3]]), np.array([10, 11, 12]), np.array([1.0, 2, 4]), Ended.TERMINATED)
CUT = Episode(np.array([[20.0], [21], [22], [23]]), np.array([20, 21, 22]), np.array([8.0, 16, 32]), Ended.TRUNCATED)
EVERY = np.arange(6)


def dataset() -> DatasetRows:
    return DatasetRows(Episodes.of([ENDS, CUT]))


def lane(capacity: int = 100) -> Lane:
    """The same two episodes, written step by step."""
    made = Lane(((1,), np.float32), (), True, capacity)
    for episode in (ENDS, CUT):
        made.begin(episode.observations[0])
        for step in range(3):
            ended = episode.ended if step == 2 else Ended.NO
            made.add(episode.actions[step], episode.rewards[step], ended, episode.observations[step + 1])
    return made


both = pytest.mark.parametrize("rows", [dataset(), lane()], ids=["dataset", "lane"])

N_STEP_TABLE = {
    # n: reward, discount, observation behind, of the six decisions
    1: ([1, 2, 4, 8, 16, 32], [0.5, 0.5, 0, 0.5, 0.5, 0.5], [1, 2, 3, 21, 22, 23]),
    2: ([1 + 1, 2 + 2, 4, 8 + 8, 16 + 16, 32], [0.25, 0, 0, 0.25, 0.25, 0.5], [2, 3, 3, 22, 23, 23]),
    3: ([1 + 1 + 1, 2 + 2, 4, 8 + 8 + 8, 16 + 16, 32], [0, 0, 0, 0.125, 0.25, 0.5], [3, 3, 3, 23, 23, 23]),
    9: ([1 + 1 + 1, 2 + 2, 4, 8 + 8 + 8, 16 + 16, 32], [0, 0, 0, 0.125, 0.25, 0.5], [3, 3, 3, 23, 23, 23]),
}


@both
@pytest.mark.parametrize("n", N_STEP_TABLE)
def test_n_step_rows(rows, n):
    reward, discount, behind = N_STEP_TABLE[n]
    found = draw(rows, EVERY, GAMMA, n)
    assert found.observation[:, 0].tolist() == [0, 1, 2, 20, 21, 22]
    assert found.action.tolist() == [10, 11, 12, 20, 21, 22]
    assert found.reward.tolist() == reward
    assert found.discount.tolist() == discount
    assert found.following[:, 0].tolist() == behind


@both
def test_chunks_end_with_their_episode(rows):
    found = chunk(rows, EVERY, 2)
    assert found.actions.tolist() == [[10, 11], [11, 12], [12, 0], [20, 21], [21, 22], [22, 0]]
    assert found.valid.tolist() == [[True, True], [True, True], [True, False], [True, True], [True, True], [True, False]]


@both
def test_windows_are_padded_on_the_left(rows):
    found = window(rows, EVERY, 3)
    assert found.observation[..., 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 20], [0, 20, 21], [20, 21, 22]]
    assert found.valid.tolist() == [[False, False, True], [False, True, True], [True] * 3] * 2
    assert found.action.tolist() == [[0, 0, 10], [0, 10, 11], [10, 11, 12], [0, 0, 20], [0, 20, 21], [20, 21, 22]]
    assert found.reward.tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 4], [0, 0, 8], [0, 8, 16], [8, 16, 32]]


def test_returns_to_go_stop_at_the_end_of_their_episode():
    episodes = Episodes.of([ENDS, CUT])
    assert returns_to_go(episodes, GAMMA).tolist() == [1 + 1 + 1, 2 + 2, 4, 0, 8 + 8 + 8, 16 + 16, 32, 0]
    assert returns_to_go(episodes, 1.0).tolist() == [7, 6, 4, 0, 56, 48, 32, 0]


def test_a_running_episode_is_valued_at_its_newest_observation():
    made = Lane(((1,), np.float32), (), True, 100)
    made.begin(np.array([0.0]))
    made.add(1, 5.0, Ended.NO, np.array([1.0]))
    found = draw(made, np.array([0]), GAMMA, 3)
    assert (found.reward.item(), found.discount.item(), found.following.item()) == (5.0, 0.5, 1.0)
    made.add(2, 7.0, Ended.NO, np.array([2.0]))
    found = draw(made, np.array([0, 1]), GAMMA, 3)
    assert found.reward.tolist() == [5 + 3.5, 7] and found.discount.tolist() == [0.25, 0.5]


def test_an_episode_that_is_broken_off_is_cut_and_no_step_leads_out_of_it():
    made = Lane(((1,), np.float32), (), True, 100)
    made.begin(np.array([0.0]))
    made.add(1, 5.0, Ended.NO, np.array([1.0]))
    made.begin(np.array([50.0]))  # the run was stopped and goes on with a fresh episode
    made.begin(np.array([60.0]))  # and again, before anybody acted
    made.add(2, 7.0, Ended.NO, np.array([61.0]))
    found = draw(made, np.array([0, 1]), GAMMA, 2)
    assert found.ended.tolist() == [Ended.TRUNCATED, Ended.NO]
    assert found.following[:, 0].tolist() == [1.0, 61.0] and found.observation[:, 0].tolist() == [0.0, 60.0]
    assert made.rows == 4


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 40, 5000])
def test_the_oldest_are_forgotten_and_the_rest_is_what_was_written(capacity):
    """A lane against a plain list of everything that happened, episodes of all lengths."""
    random, made, everything = np.random.default_rng(0), Lane(((2,), np.float32), (1,), False, capacity), []
    seen = 0.0
    for _ in range(60):
        observation = np.array([seen, seen])
        made.begin(observation)
        for _ in range(random.integers(1, 9)):
            seen += 1.0
            last = random.random() < 0.2
            following = np.array([seen, -seen])
            made.add(np.array([seen]), seen, Ended.TERMINATED if last else Ended.NO, following)
            everything.append((observation, seen, 0.0 if last else GAMMA, following))
            observation = following
            if last:
                break
        if not last:
            seen += 0.5
    kept = everything[-capacity:]
    assert made.decision_count == len(kept)
    found = draw(made, np.arange(len(kept)), GAMMA)
    assert found.reward.tolist() == [each[1] for each in kept]
    np.testing.assert_array_equal(found.observation, np.stack([each[0] for each in kept]).astype(np.float32))
    np.testing.assert_array_equal(found.following, np.stack([each[3] for each in kept]).astype(np.float32))
    np.testing.assert_array_equal(found.discount, np.array([each[2] for each in kept], np.float32))
    assert len(made.columns.reward) <= max(4096, 2 * capacity + 60)


def test_lanes_share_the_capacity_and_rows_of_stores_are_joined():
    store = ReplayStore(((1,), np.float32), (), True, 10, 3)
    assert [each.capacity for each in store.lanes] == [3, 3, 3]
    together = joined([draw(dataset(), np.array([0]), GAMMA), draw(lane(), np.array([5]), GAMMA)])
    assert together.reward.tolist() == [1, 32]


def test_the_last_row_of_an_episode_holds_no_decision():
    episodes = Episodes.of([ENDS, CUT])
    assert episodes.ended.tolist() == [0, 0, 1, NOT_ACTED, 0, 0, 2, NOT_ACTED]
    assert [each.return_ for each in episodes] == [7, 56] and episodes.returns.tolist() == [7, 56]
    assert episodes.take([1]).observation[:, 0].tolist() == [20, 21, 22, 23]
