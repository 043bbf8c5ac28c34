"""The measures against tables worked out by hand, and their orders on the five kinds of data of one gridworld."""

import math
import warnings

import gridworld
import numpy as np
import pytest

from upslope.errors import Remark, UserError
from upslope.experience import Dataset, Episode, Episodes, Space
from upslope.experience.coverage import HyperLogLog, Limits, hashes, unique_pairs
from upslope.experience.measures import Coverage, _advice, coverage, describe, recommend, trajectory_quality
from upslope.experience.neighbours import neighbourhoods
from upslope.types import Ended


def line(states: list[float], actions: list, rewards: list[float] | None = None, ended: Ended = Ended.TRUNCATED) -> Episode:
    paid = np.zeros(len(actions)) if rewards is None else np.array(rewards)
    return Episode(np.array(states, np.float64).reshape(-1, 1), np.array(actions), paid, ended)


# -- quality ------------------------------------------------------------------------------------------------------------------


def test_trajectory_quality_by_hand():
    """Returns 6, 10 and, where the log stops, 0; random 4, expert 12: (8 - 4) / (12 - 4)."""
    episodes = Episodes.of([line([0, 0, 0], [0, 0], [2, 4]), line([0, 0], [0], [10]), line([0, 0], [0], [0])])
    assert trajectory_quality(Dataset.of(episodes, random=4.0, expert=12.0, unfinished=True)) == 0.5
    assert trajectory_quality(Dataset.of(episodes, random=4.0, expert=12.0)) == pytest.approx((16 / 3 - 4) / 8)
    assert math.isnan(trajectory_quality(Dataset.of(episodes)))
    with pytest.warns(Remark, match="both return 4, so TQ is not defined"):
        assert math.isnan(trajectory_quality(Dataset.of(episodes, random=4.0, expert=4.0)))


def test_what_is_counted_by_hand():
    over = line([0, 0, 0, 0], [0, 0, 0], [0, 1, 0], Ended.TERMINATED)
    found = describe(Dataset.of(Episodes.of([over, line([0, 0], [0], [3]), line([0, 0, 0], [0, 0], [9, 9])]), unfinished=True))
    assert (found.episodes, found.decisions, found.terminated, found.truncated, found.unfinished) == (3, 6, 1, 1, 1)
    assert found.returns == {"mean": 2, "lowest": 1, "quarter": 1.5, "median": 2, "three_quarters": 2.5, "highest": 3}
    assert found.lengths["mean"] == 2 and found.zero_rewards == pytest.approx(2 / 6)
    record = found.record()
    assert record["tq"] is None and record["coverage"]["saco"] is None


# -- coverage -----------------------------------------------------------------------------------------------------------------


def test_unique_pairs_by_hand():
    """Numbers from 0 to 1 in bins of a hundredth: 0.5 and 0.509 are one, 0.51 is the next; each with another action is another."""
    rows = [(0.0, 0), (0.5, 0), (0.509, 0), (0.511, 0), (0.5, 1), (1.0, 1), (0.995, 1)]
    episodes = Episodes.of([line([state for state, _ in rows] + [7.0], [action for _, action in rows])])
    found = unique_pairs(episodes)
    assert (found.count, found.exact) == (5, True)  # where it ended, at 7, nobody acted: it widens no bin


def test_bins_of_a_pair_of_datasets_are_the_same():
    narrow, wide = Episodes.of([line([0, 0.1, 0.2, 0], [0, 0, 0])]), Episodes.of([line([0, 0.1, 100, 0], [0, 0, 0])])
    assert unique_pairs(narrow).count == 3
    assert unique_pairs(narrow, Limits.of(narrow, wide)).count == 1
    assert coverage(Dataset.of(narrow), Dataset.of(wide)).saco == 0.5  # 0 and 0.1 fall together in both


def test_vectors_as_actions_and_images_count_too():
    vectors = line([0, 0, 0, 0, 0], [[0.0, 0.0], [0.0, 1.0], [0.001, 1.0], [1.0, 0.0]])
    assert unique_pairs(Episodes.of([vectors])).count == 3
    images = np.zeros((4, 2, 2, 1), np.uint8)
    images[1, 0, 0] = 1
    seen = Episodes.of([Episode(images, np.array([0, 0, 0]), np.zeros(3), Ended.TRUNCATED)])
    assert unique_pairs(seen).count == 2  # bytes are not put into bins


def test_a_reference_of_another_size_is_remarked_on():
    small, large = Dataset.of(Episodes.of([line([0, 0], [0])])), Dataset.of(Episodes.of([line([0, 0, 0], [0, 1])]))
    with pytest.warns(Remark, match="1 decisions, and the reference 2"):
        assert coverage(small, large).saco == 0.5


def test_a_reference_of_another_environment_is_refused():
    ours = Dataset.of(Episodes.of([line([0, 0], [0])]), "mine")
    wide = Dataset.of(Episodes.of([Episode(np.zeros((2, 3)), np.zeros(1, int), np.zeros(1), Ended.TRUNCATED)]))
    for other in (wide, Dataset.of(Episodes.of([line([0, 0], [[0.0]])]))):
        with pytest.raises(UserError, match=r"dataset 'mine' has (observation|action)s of shape .* it is of another environment"):
            coverage(ours, other)


@pytest.mark.parametrize("count", [10, 1_000, 50_000, 400_000])
def test_the_estimate_is_near_the_count(count: int):
    rng = np.random.default_rng(count)
    codes = np.arange(count, dtype=np.uint64)[:, None].view(np.uint8)
    sketch = HyperLogLog()
    for _ in range(2):  # what comes again does not count again
        sketch.add(hashes(codes[rng.permutation(count)]))
    assert abs(sketch.estimate() - count) < 0.02 * count  # three and a half standard errors


@pytest.mark.parametrize("count", [20_000, 80_000, 160_000])
def test_the_estimates_error_is_as_large_as_the_theory_says_and_without_bias(count: int):
    errors = []
    for seed in range(30):
        sketch = HyperLogLog()
        sketch.add(np.random.default_rng(seed).integers(0, 2**64, count, np.uint64))
        errors.append(sketch.estimate() / count - 1)
    assert 0.002 < float(np.std(errors)) < 0.008 and abs(float(np.mean(errors))) < 0.003


def test_large_data_are_estimated_and_agree_with_the_count():
    data = gridworld.five_kinds()["replay"].episodes
    exact, estimated = unique_pairs(data), unique_pairs(data, exact_up_to=100)
    assert exact.exact and not estimated.exact
    assert estimated.count == pytest.approx(exact.count, rel=0.02)


# -- neighbours -----------------------------------------------------------------------------------------------------------------


def test_action_variance_by_hand():
    """Two states far apart. In one, actions 1 and 3: variance 2. In the other 5, 5, 5: none. Means over five states: 4/5."""
    rows = [(0.0, 1.0), (0.0, 3.0), (9.0, 5.0), (9.0, 5.0), (9.0, 5.0)]
    episodes = Episodes.of([line([state for state, _ in rows] + [0.0], [[action] for _, action in rows])])
    free, bounded = Space((1,), "float32"), Space((1,), "float32", low=(0.0,), high=(4.0,))
    assert neighbourhoods(episodes, free).action_variance == pytest.approx(4 / 5)
    assert neighbourhoods(episodes, bounded).action_variance == pytest.approx(4 / 5 / 4)  # a range of 4 becomes one of 2
    assert neighbourhoods(episodes, free).state_similarity == pytest.approx((1 + 1 + 2 + 2 + 2) / 5)


def test_variance_of_choices_by_hand():
    """Choices 0, 1 in one state: two of them always differ. 2, 2, 0 in the other: two of three pairs do. (2 * 1 + 3 * 2/3) / 5."""
    rows = [(0.0, 0), (0.0, 1), (9.0, 2), (9.0, 2), (9.0, 0)]
    episodes = Episodes.of([line([state for state, _ in rows] + [0.0], [action for _, action in rows])])
    assert neighbourhoods(episodes, Space((), "int64", n=3)).action_variance == pytest.approx(4 / 5)


def test_transition_noise_by_hand():
    """From 0 the same action leads 1 or 3 up; from 100 another always leads 5 up. Changes 1, 3, 5, 5 have variance 11/3."""
    episodes = Episodes.of([line([0, 1], [0]), line([0, 3], [0]), line([100, 105], [1]), line([100, 105], [1])])
    found = neighbourhoods(episodes, Space((), "int64", n=2))
    assert found.transition_noise == pytest.approx(((2 + 2 + 0 + 0) / 4) / (11 / 3))
    other = Episodes.of([line([0, 1], [0]), line([0, 3], [1]), line([100, 105], [1]), line([100, 105], [1])])
    assert neighbourhoods(other, Space((), "int64", n=2)).transition_noise == 0  # the action explains it


def test_states_without_company():
    found = neighbourhoods(Episodes.of([line([0, 10, 20], [0, 0])]), Space((), "int64", n=1))
    assert math.isnan(found.action_variance) and found.state_similarity == 0


def test_a_large_dataset_is_drawn_from_and_scaled_up(monkeypatch: pytest.MonkeyPatch):
    data = gridworld.five_kinds()["noisy"]
    whole = neighbourhoods(data.episodes, data.card.action)
    monkeypatch.setattr("upslope.experience.neighbours.AMONG", 1000)
    some = neighbourhoods(data.episodes, data.card.action)
    assert (whole.among, some.among) == (len(data.episodes.decisions), 1000)
    assert some.state_similarity == pytest.approx(whole.state_similarity, rel=0.1)
    assert some.action_variance == pytest.approx(whole.action_variance, rel=0.2)
    assert some == neighbourhoods(data.episodes, data.card.action)


# -- orders -----------------------------------------------------------------------------------------------------------------------


def test_the_five_kinds_of_data_stand_in_the_papers_order():
    kinds = gridworld.five_kinds()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # they are of one size
        found = {name: describe(each, kinds["replay"]) for name, each in kinds.items()}
    quality, explored = ({name: get(each) for name, each in found.items()} for get in (lambda d: d.tq, lambda d: d.coverage.saco))
    assert sorted(quality, key=quality.__getitem__) == ["random", "mixed", "replay", "noisy", "expert"]
    assert explored["expert"] < explored["noisy"] < min(explored[kind] for kind in ("random", "mixed", "replay"))
    assert explored["replay"] == 1
    advice = {name: each.advice.family for name, each in found.items()}
    assert advice == {
        "random": "off-policy", "mixed": "off-policy", "replay": "off-policy", "noisy": "imitation", "expert": "imitation",
    }  # fmt: skip


def test_choosing_by_chance_between_equal_ways_shows_as_action_variance():
    rng = np.random.default_rng(1)
    same, either = gridworld.dataset("same", [(gridworld.consistent, 1)]), gridworld.dataset("either", [(gridworld.either(rng), 1)])
    assert trajectory_quality(same) == trajectory_quality(either) == 1
    ours, theirs = describe(same).neighbourhoods, describe(either).neighbourhoods
    assert ours.action_variance == 0 and theirs.action_variance > 0.3
    assert ours.state_similarity > theirs.state_similarity


def test_a_world_that_slips_shows_as_transition_noise():
    found = [
        describe(gridworld.dataset("slips", [(gridworld.consistent, 1)], slip=slip)).neighbourhoods.transition_noise
        for slip in (0.0, 0.2, 0.5)
    ]
    assert found[0] == 0 and 0.1 < found[1] < found[2] < 1


@pytest.mark.parametrize(
    ("tq", "saco", "discrete", "family", "method"),
    [
        (0.95, 0.1, False, "imitation", "bc"), (0.95, math.nan, True, "imitation", "bc"),
        (0.3, 0.9, True, "off-policy", "dqn"), (math.nan, 0.9, False, "off-policy", "sac"),
        (0.5, 0.4, False, "near the data", "iql"), (0.5, math.nan, True, "near the data", "awac"),
        (math.nan, math.nan, False, "near the data", "td3-bc"), (0.1, 0.2, False, "offline-to-online", "rlpd"),
        (0.1, math.nan, False, "near the data", "iql"),
    ],
)  # fmt: skip
def test_the_rule_of_thumb(tq: float, saco: float, discrete: bool, family: str, method: str):
    found = recommend(tq, saco, discrete)
    assert found.family == family and method in found.methods
    assert ("unknown" in found.because) == (math.isnan(tq) or math.isnan(saco))


def test_coverage_does_not_count_where_every_pair_is_new():
    random = np.random.default_rng(0)

    def data(name: str):
        seen, acted = random.standard_normal((201, 8)).astype(np.float32), random.uniform(-1, 1, (200, 2)).astype(np.float32)
        one = Episode(seen, acted, np.ones(200, np.float32), Ended.TRUNCATED)
        return Dataset.of(Episodes.of([one]), name, env="gym:Hopper-v5", random=0.0, expert=400.0)

    new = Coverage(400.0, True, 1.0, 1.0, "other")
    found = _advice(0.2, new, False)
    assert found.family == "near the data" and "SACo 1.00 tells nothing, as 100% of the pairs are the only one" in found.because
    assert _advice(0.2, Coverage(40.0, True, 0.1, 1.0, "other"), False).family == "off-policy"
    assert describe(data("mine"), data("other")).advice.family == "near the data"
