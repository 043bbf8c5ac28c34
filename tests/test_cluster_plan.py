"""How many GPUs should sample: what is simulated is what a run does."""

from __future__ import annotations

import json
import sys

import pytest
from places import ROOT

FOLDER = ROOT / "bench"
sys.path.insert(0, str(FOLDER))

from cluster_check import slept  # noqa: E402
from cluster_plan import Costs, Work, best_split, simulate, sync_seconds  # noqa: E402


def test_a_simulated_run_waits_for_what_a_run_waits_for():
    shares, learning = [[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]], [2.0, 2.0, 2.0]
    assert simulate(shares, learning, 1, 0).seconds == 18, "one after the other"
    assert simulate(shares, learning, 2, 0).seconds == 14, "each step as long as its longest share"
    assert simulate(shares, learning, 1, 1).seconds == 4 + 4 + 4 + 2, "sampling hides learning, not the other way round"
    assert simulate(shares, learning, 2, 3).seconds == 3 + 2 + 2 + 2, "far ahead only the first step is waited for"
    assert simulate(shares, learning, 2, 0, sync=0.5).seconds == 14 + 3 * 0.5, "a version is fetched once by each worker"
    assert simulate(shares, learning, 2, 3, sync=0.5).seconds == 9.5, "who is far ahead has one version"
    line = simulate(shares, learning, 2, 0)
    assert line.sampling == 12 / (2 * 14) and line.learning == 6 / 14


def test_a_plan_takes_what_was_measured_on_one_gpu():
    told = json.loads((FOLDER / "results" / "scaling_cuda.json").read_text())
    costs = Costs.measured(told["points"])
    assert costs.position(128) == pytest.approx((0.0839 + 0.0040) / 64, rel=0.01)
    assert costs.position(4096) == pytest.approx(2 * costs.position(2048))
    assert costs.learning == pytest.approx((0.498 + 0.743 + 0.003 + 0.189) / 265216, rel=0.01)
    assert sync_seconds(100, 10, 1) == 10 and sync_seconds(100, 10, 7) == 30
    small = Work(answers=64, steps=4)
    waits, ahead = (best_split(small, costs, 8, steps) for steps in (0, 1))
    assert ahead["step_seconds"] < waits["step_seconds"] and 0 < waits["used"] < ahead["used"] <= 1


def test_the_code_that_hands_out_assignments_takes_no_less_than_is_simulated():
    """How much more depends on the machine; less would mean that the simulation waits for what nobody waits for."""
    shares = [[0.05, 0.15], [0.1, 0.1], [0.15, 0.05]]
    for workers, ahead in ((1, 0), (2, 0), (2, 1)):
        assert slept(shares, 0.1, workers, ahead) >= simulate(shares, [0.1] * 3, workers, ahead).seconds
