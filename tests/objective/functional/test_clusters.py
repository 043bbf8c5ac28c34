"""Clusters of numbers: the best k-means beside scikit-learn's of many starts, whatever the order of rows."""

import numpy as np
import pytest
import torch

from upslope.objective.functional.clusters import highest_cluster


def highest(values: list[float], clusters: int = 3) -> list[float]:
    value = torch.tensor(values, dtype=torch.float64)
    found = highest_cluster(
        value, torch.ones(len(values), dtype=torch.bool), torch.zeros(len(values), dtype=torch.int64), 1, clusters
    )
    return sorted(value[found].tolist())


@pytest.mark.parametrize("count", [3, 4, 5, 9, 20])
def test_as_scikit_learn_finds_them(count: int):
    from sklearn.cluster import KMeans

    for seed in range(5):
        values = np.random.default_rng([seed, count]).normal(size=count) * 10 - 40
        labels = KMeans(n_clusters=3, n_init=100, random_state=0).fit(values.reshape(-1, 1)).labels_
        assert highest(values.tolist()) == sorted(values[labels == labels[values.argmax()]].tolist())


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1.0], [1.0]),
        ([1.0, 2.0], [2.0]),
        ([1.0, 2.0, 2.0], [2.0, 2.0]),
        ([3.0, 3.0, 3.0, 3.0, 3.0], [3.0] * 5),
        ([0.0, 0.1, 5.0, 5.1, 9.0, 9.2, 9.1], [9.0, 9.1, 9.2]),
        ([-1e6, -1e6 + 1, 0.0, 0.5, 1.0, 1.5], [1.0, 1.5]),
    ],
)
def test_few_equal_and_distant_values(values: list[float], found: list[float]):
    assert highest(values) == found and highest(values[::-1]) == found


def test_groups_are_apart_and_may_be_empty():
    value = torch.tensor([9.0, 0.0, 1.0, 2.0, 100.0, 3.0, 50.0])
    group = torch.tensor([0, 0, 0, 0, 2, 2, 1])
    among = torch.tensor([True, True, True, True, True, True, False])
    assert highest_cluster(value, among, group, 3).tolist() == [True, False, False, False, True, False, False]
    assert not highest_cluster(value, torch.zeros(7, dtype=torch.bool), group, 3).any()
