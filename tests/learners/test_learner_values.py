"""A learner's steps are what they were: metrics, weights, what parts remember, and what is recorded of each token.

As with the numbers of parts, nobody worked these out: they say that nothing has changed. Where a change is meant,
``PYTHONPATH=tests python tests/learners/test_learner_values.py`` writes them anew; the difference names what has changed.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import pytest
from learner_values import Values, control_values, learners, table_values

PINNED = Path(__file__).parent / "learner_values.json"
CONTROL = ("ppo", "bpo")


@cache
def pinned(of: str) -> dict[str, Values]:
    return json.loads(PINNED.read_text())[of] if PINNED.exists() else {}


def differing(found: Values, wanted: Values) -> list[str]:
    """Names of what differs by more than the rounding of four steps in float32."""
    missing = float("nan")
    return [
        name
        for name in sorted(found.keys() | wanted.keys())
        if not math.isclose(found.get(name, missing), wanted.get(name, missing), rel_tol=3e-5, abs_tol=2e-5)
    ]


@pytest.mark.parametrize("name", sorted(pinned("table")))
def test_a_learner_of_rows_does_what_it_did(name: str):
    assert differing(table_values(name), pinned("table")[name]) == []


@pytest.mark.parametrize("name", sorted(pinned("control")))
def test_a_learner_of_decisions_does_what_it_did(name: str):
    assert differing(control_values(name), pinned("control")[name]) == []


def test_all_are_listed():
    assert pinned("table").keys() == learners().keys() and set(pinned("control")) == set(CONTROL)


if __name__ == "__main__":
    now = {"table": {name: table_values(name) for name in learners()}, "control": {name: control_values(name) for name in CONTROL}}
    short = {
        of: {name: {key: float(f"{v:.8g}") for key, v in each.items()} for name, each in some.items()} for of, some in now.items()
    }
    PINNED.write_text(json.dumps(short, indent=1) + "\n")
