"""The metrics of a step, in small numbers."""

from __future__ import annotations

import math

import pytest
import torch

from upslope.learners.metrics import MetricSums, PendingMetrics, add_slice_metrics, component_metrics, sampling_metrics
from upslope.types import Trajectories, View


def rows(**changes) -> Trajectories:
    """Two groups of two rows with three places; the first group earned the same."""
    sampled = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    reward = torch.tensor([1.0, 1.0, 0.0, 3.0])
    made = Trajectories(
        sampled=sampled, reward=reward, group=torch.tensor([4, 4, 7, 7]), task=torch.zeros(4, dtype=torch.long),
        behavior=View(torch.full((4, 3), -1.0), torch.tensor([[1.0, 2.0, 50.0]] * 4)),
        components={"task": reward, "format": torch.tensor([0.5, 0.0, 0.0, 0.0])},
    )  # fmt: skip
    return made.replace(**changes)


def test_means_over_what_was_observed():
    sums = MetricSums()
    sums.add("a", 3.0, 2.0)
    sums.add("a", torch.tensor(5.0), torch.tensor(2))
    sums.add("nothing", 0.0, 0.0)
    other = MetricSums()
    other.add("a", torch.tensor(1.0), 1.0)
    other.add("b", 1.0, 4.0)
    other.defer(PendingMetrics([("b", 0, 4.0), ("c", 1, 0)], (2.0, 6.0)))
    sums.merge(other)
    assert sums.means() == {"a": 9.0 / 5, "b": 3.0 / 8, "c": 3.0}
    assert sums.means() == {"a": 9.0 / 5, "b": 3.0 / 8, "c": 3.0}, "what was deferred counts once"


def test_what_is_known_before_learning():
    everything = rows()
    found = sampling_metrics(everything, everything.take_rows(slice(0, 3)))
    # Entropies 1 + 2, 1, 1 + 2 + 50 of six decisions; lengths 2, 1, 3, 0; one of two groups earned the same.
    assert found == pytest.approx({
        "kept_rows": 3 / 4, "entropy": 57 / 6, "reward_format": 0.125, "reward": 1.25, "constant_groups": 0.5, "length": 1.5,
        "longest": 3.0,
    })  # fmt: skip
    assert component_metrics(everything) == {"reward_format": 0.125}


def test_what_is_known_of_an_environment_or_of_nothing():
    bare = rows(components={}, behavior=View(torch.zeros(4, 3)))
    assert sampling_metrics(bare, bare) == {"kept_rows": 1.0}
    none = rows(components={}).take_rows(slice(0, 0))
    assert sampling_metrics(none, none) == {"kept_rows": 0.0, "entropy": 0.0}
    one = rows(components={}).take_rows(slice(3, 4))
    assert sampling_metrics(one, one)["entropy"] == 0.0


def test_what_a_slice_shows():
    """Log-ratios 0.1 and -0.2 of row 0, 0.3 of row 1; 25, NaN and 0 of row 2: one of six is limited, one unknown."""
    log = torch.tensor([[0.1, -0.2, 9.0], [0.3, 0.0, 0.0], [25.0, math.nan, 0.0], [0.0, 0.0, 0.0]])
    batch = rows(proximal=View(torch.zeros(4, 3)), current=View(log))
    log = torch.where(batch.sampled > 0, log, 0.0)
    batch = batch.replace(
        current=View(log), advantage=torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0, 0], [0.0, 2.0, 0.0], [1.0, 1.0, 1.0]])
    )
    high = torch.tensor([[True, False, True]] + [[False] * 3] * 3)
    low = torch.tensor([[True, True, False]] + [[False] * 3] * 3)
    grad = torch.tensor([[0.5, 0.0, 1.0], [-0.5, 0.0, 0.0], [0.0, 0.0, 0.1], [1.0, 0.0, 0.0]])
    sums = MetricSums()
    sums.add("learning", 0.0, 6.0)
    notes = {"clipped_high": high, "clipped_low": low}
    add_slice_metrics(sums, batch, torch.tensor([[0.25, 0.5], [0.0, 1.0]]), notes, grad)
    found = sums.means()
    kl = [math.exp(x) - 1 - x for x in (0.1, -0.2, 0.3, 20.0)]
    assert found == pytest.approx({
        "learning": 3 / 6, "clipped_high": 1 / 6, "clipped_low": 2 / 6, "clip_fraction": 2 / 6, "limited": 2 / 6,
        "log_ratio": (0.1 + 0.2 + 0.3 + 20.0) / 6, "kl_proximal": sum(kl) / 6, "advantage_positive": 3 / 6, "loss": 1.75,
    }, rel=1e-5)  # fmt: skip


def test_a_surrogate_without_notes_and_a_slice_without_gradient():
    batch = rows(proximal=View(torch.zeros(4, 3)), current=View(torch.zeros(4, 3)), advantage=torch.zeros(4, 3))
    sums = MetricSums()
    add_slice_metrics(sums, batch, torch.zeros(4, 3), {}, None)
    assert set(sums.means()) == {"limited", "log_ratio", "kl_proximal", "advantage_positive", "loss"}
