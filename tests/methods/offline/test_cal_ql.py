"""Cal-QL: CQL where no return is known, and updates beside d3rlpy."""

from __future__ import annotations

import pytest
import torch
from beside_off_policy import (
    NARROW,
    OurUpdates,
    assert_bitwise_equal,
    our_policy,
    random_noise,
    random_rows,
)
from methods.offline.test_cql import LIKE_THEIRS, beside_d3rlpy, settings_of_theirs

from upslope.methods import find

cal_ql, cql = (find(name).with_knobs(NARROW) for name in ("cal-ql", "cql"))


@pytest.mark.checks("identity", "cal-ql")
@pytest.mark.parametrize("continuous", [True, False])
def test_where_no_return_is_known_it_is_cql(continuous: bool):
    ours, other = our_policy(cal_ql, continuous), our_policy(cql, continuous)
    left, right = OurUpdates(cal_ql, ours, lr=1e-3), OurUpdates(cql, other, lr=1e-3)
    for seed in range(3):
        rows = random_rows(seed, continuous)
        unknown = torch.full_like(rows.step_reward, -torch.inf)
        left(rows.replace(signal=rows.signal | {"return_to_go": unknown}), random_noise(seed))
        right(rows, random_noise(seed))
    assert_bitwise_equal(ours, other)


@pytest.mark.checks("oracle", "cal-ql", by="d3rlpy")
def test_updates_are_those_of_d3rlpy(monkeypatch: pytest.MonkeyPatch):
    from d3rlpy.algos import CalQLConfig

    beside_d3rlpy(cal_ql.with_knobs(LIKE_THEIRS), CalQLConfig(alpha_threshold=0.0, **settings_of_theirs()), monkeypatch)


def test_values_below_the_return_are_pressed_no_further():
    """With returns above everything the policy's actions have no gradient left: only the uniform ones are pressed down."""
    rows = random_rows(0)
    high = rows.replace(signal=rows.signal | {"return_to_go": torch.full_like(rows.step_reward, 1e3)})
    penalties = []
    for given in (rows, high):
        policy = our_policy(cal_ql)
        penalties.append(OurUpdates(cal_ql, policy, lr=1e-3)(given, random_noise(0))["q_penalty"])
    assert penalties[1] > penalties[0] + 1e3


def test_online_half_of_the_rows_are_the_datasets():
    (data,) = cal_ql.data
    assert data.counts(256, {"replayed": 10, "demonstrated": 90_000}, 0.3) == {"replayed": 128, "demonstrated": 128}
    assert data.counts(256, {"replayed": 0, "demonstrated": 90_000}, 0.3) == {"replayed": 0, "demonstrated": 256}
    assert data.needs_dataset and cql.offline and not cal_ql.offline
    assert "signal.return_to_go" in cal_ql.needs()
