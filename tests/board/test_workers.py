"""What the board reads of a run's workers: all of it bounded, whatever stands in the file."""

from __future__ import annotations

import json

import pytest

from upslope.board.log_table import LogTable
from upslope.board.workers import busy, workers


def table(*steps: dict) -> LogTable:
    found = LogTable()
    found.steps.add([{"step": float(number), **step} for number, step in enumerate(steps, start=1)])
    return found


def test_with_workers_the_learner_is_idle_only_while_it_waits():
    told = busy(table({"seconds": 4.0, "seconds_sampling": 1.0}, {"seconds": 2.0, "seconds_sampling": 0.5, "worker_busy": 0.9}))
    assert told == {"step": 2.0, "sampling": pytest.approx(0.9), "scoring": None, "learning": 0.75}


def test_without_workers_sampling_and_learning_take_turns():
    assert busy(table({"seconds": 4.0, "seconds_sampling": 1.0})) == {
        "step": 1.0,
        "sampling": 0.25,
        "scoring": None,
        "learning": 0.75,
    }
    assert busy(LogTable()) == {"step": None, "sampling": None, "scoring": None, "learning": None}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"workers": 3, "faults": [1]}', '{"workers": [1, null]}', "[" * 100_000, " " * 2**21]
)
def test_what_is_no_list_of_workers_is_none(text, tmp_path):
    (tmp_path / "workers.json").write_text(text)
    assert workers(tmp_path, ()) == {"workers": [], "waiting": {"sampling": None, "scoring": None}, "faults": {}}


def test_a_worker_has_a_rate_and_nothing_that_is_no_number(tmp_path):
    told = {"number": 0, "pid": "<b>", "version": 2, "rows": 30, "seconds": 10.0, "lost": None, "doing": "sampling", "more": "x"}
    (tmp_path / "workers.json").write_text(
        json.dumps({"workers": [told] * 5000, "waiting_for_workers": 1, "faults": {"worker_died": 2}})
    )
    found = workers(tmp_path, ())
    assert (
        len(found["workers"]) == 1024
        and found["faults"] == {"worker_died": 2}
        and found["waiting"] == {"sampling": 1, "scoring": None}
    )
    assert found["workers"][0] == {
        "number": 0, "pid": None, "version": 2, "rows": 30, "seconds": 10.0, "lost": None, "kind": "sampling", "doing": "sampling",
        "rows_per_second": 3.0,
    }  # fmt: skip
