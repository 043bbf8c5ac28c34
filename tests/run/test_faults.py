"""A full disk and a kill while a checkpoint is written: the run says so, goes on, and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "faulty_runs.py"
BYTES = 3_000_000


def found_by(*command: str) -> dict:
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def small_disk(folder: Path) -> list[str]:
    """What goes before a command that shall see a small file system of its own there."""
    return ["bwrap", "--dev-bind", "/", "/", "--size", str(BYTES), "--tmpfs", str(folder)]


@pytest.fixture
def disk(tmp_path) -> list[str]:
    if shutil.which("bwrap") is None:
        pytest.skip("apt-get install bubblewrap, and run the tests again")
    tried = subprocess.run([*small_disk(tmp_path), "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no file system can be mounted here: {tried.stderr.strip()}")
    return small_disk(tmp_path)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_words_and_nothing_is_lost(disk, tmp_path):
    found = found_by(*disk, sys.executable, str(SCRIPT), str(tmp_path), "disk")
    assert set(found) == {"log line", "rollout record", "checkpoint"}
    for case in found.values():
        assert "No space left on device" in case["said"] and "safe" in case["said"]
        assert case["learned"] and case["same"] and case["curve"] and not case["drafts"]
    # It was the one that is meant which met the full disk.
    assert found["log line"]["filled"], "up to the end of its last page, be it in the middle of a line"
    assert found["rollout record"]["recorded"] == found["rollout record"]["steps"] - 1
    assert not found["checkpoint"]["filled"] and found["checkpoint"]["steps"] >= 4


@pytest.mark.slow
def test_a_run_killed_while_it_saves_goes_on_from_a_whole_checkpoint(tmp_path):
    found = found_by(sys.executable, str(SCRIPT), str(tmp_path), "killed")
    assert set(found) == {"tensors", "digests", "deleted"}
    for case in found.values():
        assert case["killed"] and case["left"] and "step-000006" not in case["left"]
        assert case["learned"] and case["same"] and case["curve"] and not case["drafts"]
