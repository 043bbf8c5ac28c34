"""A comparison with a winner and two methods that cannot be told apart, for what shows it."""

from __future__ import annotations

import pytest
from fake_runs import fake_run

from upslope.report.compare.gathering import gather
from upslope.report.compare.measuring import Comparison, measure


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    root = tmp_path_factory.mktemp("runs")
    paths = [
        fake_run(root, method, seed, end + 0.01 * seed, right=[seed, 4 - seed % 4, 2])
        for method, end in {"grpo": 0.6, "gspo": 0.605, "dhpo": 0.9}.items()
        for seed in range(5)
    ]
    return measure(gather([(path, None) for path in paths]))
