"""Finding places among many numbers: the same as by sorting and by a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from upslope.types.places import found_in, places, smallest


@pytest.mark.parametrize("apart", [1, 1 << 20], ids=["hashes", "the same lowest bits"])
@pytest.mark.parametrize(("known", "asked"), [(0, 3), (1, 1), (3, 400), (500, 300), (2000, 5), (2000, 0)])
def test_places_are_those_of_a_dictionary(known, asked, apart):
    rng = np.random.default_rng(known + asked)
    count = 2 * known + asked
    numbers = rng.permutation(np.arange(count) * apart) if apart > 1 else rng.integers(-(1 << 62), 1 << 62, count)
    names = torch.from_numpy(numbers[:known].copy())
    tasks = torch.from_numpy(rng.choice(numbers, asked))
    place, found = places(names, tasks)
    there = {name: number for number, name in enumerate(names.tolist())}
    assert found.tolist() == [task in there for task in tasks.tolist()]
    assert place[found].tolist() == [there[task] for task in tasks.tolist() if task in there]
    few = set(tasks.tolist())
    assert found_in(names.numpy(), tasks.numpy()).tolist() == [number for name, number in there.items() if name in few]


@pytest.mark.parametrize("count", [0, 1, 5, 99, 100, 200])
@pytest.mark.parametrize("unknown", [0, 3, 100])
def test_the_smallest_are_the_first_of_a_stable_sort(count, unknown):
    values = torch.from_numpy(np.random.default_rng(count).integers(0, 9, 100).astype(np.float64))  # many are equal
    values[torch.randperm(100, generator=torch.Generator().manual_seed(count))[:unknown]] = torch.nan
    assert smallest(values, count).tolist() == torch.argsort(values, stable=True)[:count].tolist()
