"""The search tree against all distances."""

from __future__ import annotations

import copy

import pytest
import torch

from upslope.experience.search_tree import SearchTree


@pytest.mark.parametrize(("points", "dimensions"), [(1, 1), (7, 3), (500, 2), (500, 14)])
def test_nearest_is_that_of_all_distances(points: int, dimensions: int):
    random = torch.Generator().manual_seed(points)
    among, asked = torch.randn(points, dimensions, generator=random), torch.randn(40, dimensions, generator=random)
    nearest = torch.cdist(asked.double(), among.double()).argmin(1)
    assert torch.equal(SearchTree(among)(asked), nearest)


def test_points_find_themselves():
    among = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(SearchTree(among)(among), torch.arange(300))


def test_copies_share_the_tree():
    tree = SearchTree(torch.zeros(3, 2))
    assert copy.deepcopy(tree) is tree
