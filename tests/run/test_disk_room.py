"""A disk that is too small for a run is found before the run begins, from what the run will write."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

import upslope as up
from upslope.errors import UserError
from upslope.run.disk_room import DiskRoom, check_disk, disk_room
from upslope.runtime.settings import Settings

SIZES = {"model": "tiny:layers=2,width=128", "steps": 2, "tasks_per_step": 4, "samples_per_task": 4, "warm_start": 0.0,
         "eval_problems": 2, "record": "none", "checkpoint_every": 1, "threads": 1}  # fmt: skip
Usage = namedtuple("Usage", "total used free")


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("lora", [0, 4])
def test_what_is_foreseen_is_what_is_written(lora, tmp_path):
    run = up.train("grpo", "reverse:length=2", **SIZES, lora=lora, out=tmp_path / "run")
    room = disk_room(run.components.policy, run.plan.settings)
    assert bytes_of(tmp_path / "run" / "checkpoints" / "step-000002") == pytest.approx(room.checkpoint, rel=0.1)


def test_rows_that_are_sampled_ahead_and_checkpoints_that_are_kept_are_counted():
    class Model:
        def parameter_count(self):
            return 1000

        def trainable(self):
            return {}

    sizes = {"tasks_per_step": 4, "samples_per_task": 8, "max_tokens": 100, "steps": 100, "checkpoint_every": 10}
    now, ahead = Settings(**sizes, keep_checkpoints=1), Settings(**sizes, keep_checkpoints=5, max_staleness=2)
    one, two = (disk_room(Model(), each) for each in (now, ahead))
    assert one.checkpoint == 4000 and two.checkpoint == 4000 + 2 * 4 * 8 * 100 * 64
    assert (one.checkpoints, two.checkpoints) == (2, 5) and two.total == 5 * two.checkpoint
    assert disk_room(Model(), Settings(**sizes | {"steps": 10})).checkpoints == 1, "only the last"


def test_a_run_that_does_not_fit_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**9, 10**9 - 1_500_000, 1_500_000))
    with pytest.raises(UserError, match=r"has 1\.5 MB left, and this run writes .* MB: checkpoints of .*--lora"):
        up.train("grpo", "reverse:length=2", **SIZES, out=tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()


def test_just_enough_is_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**9, 0, 300))
    check_disk(DiskRoom(100, 3), tmp_path / "not" / "there")
    with pytest.raises(UserError, match="2 at a time"):
        check_disk(DiskRoom(151, 2), tmp_path)
