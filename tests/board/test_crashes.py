"""Runs that did not end well: the list says crashed, and what is known of it is shown."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
from board_folders import client, write_run

from upslope.run import Stopped
from upslope.runtime.process_file import FILE, at_work


def record(root: Path) -> dict[str, Any]:
    (found,) = client(root).get("/api/runs").json()["runs"]
    return found


def end_by(run: Path, problem: BaseException | None) -> None:
    try:
        with at_work(run):
            if problem is not None:
                raise problem
    except BaseException as raised:
        assert raised is problem


def test_an_error_that_ends_a_run_is_kept_and_shown(tmp_path: Path):
    run = write_run(tmp_path / "a", steps=4, finished=False)
    end_by(run, ValueError("no price for <b>\nmore"))
    assert (record(tmp_path)["status"], record(tmp_path)["why"]) == ("crashed", "ValueError: no price for <b>")
    (run / "output.log").write_text("x" * 20_000 + "the end")
    told = client(tmp_path).get("/api/crash?run=a").json()
    assert told["said"] == "no price for <b>\nmore" and "test_crashes.py" in told["trace"] and told["step"] == 4
    assert told["output"].endswith("the end") and len(told["output"]) == 8000
    with at_work(run):
        assert record(tmp_path)["status"] == "running", "it was resumed"


@pytest.mark.parametrize("problem", [None, Stopped("asked to"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_who_stops_a_run_does_not_crash_it(tmp_path: Path, problem: BaseException | None):
    end_by(write_run(tmp_path / "a", finished=False), problem)
    assert (record(tmp_path)["status"], record(tmp_path)["why"]) == ("stopped", "")


def test_a_killed_process_has_crashed_with_what_is_known(tmp_path: Path):
    run = write_run(tmp_path / "a", finished=False)
    gone = {"host": platform.node(), "pid": os.getpid(), "began": 1}
    (run / FILE).write_text(json.dumps(gone))
    assert record(tmp_path)["status"] == "crashed" and "process is gone" in record(tmp_path)["why"]
    told = client(tmp_path).get("/api/crash?run=a").json()
    assert told["crashed"] and told["trace"] == "" and told["last_line"] > 0 and not told["restarted"]
    (run / FILE).write_text(json.dumps(gone | {"host": "elsewhere"}))
    os.utime(run / "run.toml", (1, 1))
    os.utime(run / "metrics.jsonl", (1, 1))
    assert record(tmp_path)["status"] == "stopped", "nothing can be known of another machine's process"


@pytest.mark.parametrize("error", ["text", {"kind": 3, "said": ["x"], "trace": {}}, {"kind": "K" * 9999, "said": "s" * 99999}])
def test_a_strange_error_is_shown_as_far_as_it_goes(tmp_path: Path, error: Any):
    run = write_run(tmp_path / "a", finished=False)
    (run / FILE).write_text(json.dumps({"ended": 1.0, "error": error}))
    assert record(tmp_path)["status"] in ("crashed", "stopped") and len(record(tmp_path)["why"]) < 700
    assert client(tmp_path).get("/api/crash?run=a").status_code == 200
