"""``resume --steps`` of runs that learn from stored experience; tests/run/test_loop.py has the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import upslope as up

ROWS = 60
SMALL = dict(updates_per_step=2, horizon=20, minibatch=8, eval_problems=1, record="none")
NARROW = {"policy.hidden": (8,), "models.q.network.hidden": (8,)}


def columns() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "observations": random.uniform(-1, 1, (ROWS, 3)),
        "actions": random.uniform(-2, 2, (ROWS, 1)),
        "rewards": random.normal(size=ROWS),
        "terminations": np.zeros(ROWS, bool),
        "truncations": np.arange(ROWS) % 20 == 19,
    }


@pytest.mark.parametrize(("offline_steps", "acted"), [(None, False), (1, True)])
def test_a_run_that_was_never_to_act_does_not_begin_to_when_it_is_longer(tmp_path: Path, offline_steps, acted: bool):
    words = {} if offline_steps is None else {"offline_steps": offline_steps}
    run = up.train("td3-bc", "gym:Pendulum-v1", data=columns(), steps=2, knobs=NARROW, out=tmp_path / "run", **SMALL, **words)
    longer = up.resume(run.path, steps=3)
    assert [record["samples"] > 0 for record in longer.metrics] == [False, acted, acted]
    assert up.load(run.path).plan.settings.offline_steps == (1 if acted else 3)
