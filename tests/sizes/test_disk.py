"""A disk that is too small for a run is found before the run begins, from what the run will write."""

from __future__ import annotations

import dataclasses
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

import upslope as up
from upslope.errors import UserError
from upslope.runtime.settings import Settings
from upslope.sizes.disk import DiskRoom, disk_problem, disk_room

SIZES = {"model": "tiny:layers=2,width=128", "steps": 2, "tasks_per_step": 4, "samples_per_task": 4, "warm_start": 0.0,
         "eval_problems": 2, "record": "none", "checkpoint_every": 1, "threads": 1}  # fmt: skip
Usage = namedtuple("Usage", "total used free")


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("lora", [0, 16])
def test_what_is_foreseen_is_what_is_written(lora, tmp_path):
    foreseen = up.estimate("grpo", "reverse:length=2", **SIZES, lora=lora, out=tmp_path / "run").disk
    run = up.train("grpo", "reverse:length=2", **SIZES, lora=lora, out=tmp_path / "run")
    assert run.estimate.disk == foreseen
    assert bytes_of(tmp_path / "run" / "checkpoints" / "step-000002") == pytest.approx(foreseen.checkpoint, rel=0.1)
    if lora:
        assert bytes_of(tmp_path / "run" / "model") == pytest.approx(foreseen.once, rel=0.1)


def test_of_adapters_a_model_without_a_folder_is_written_once():
    settings = Settings(steps=100, checkpoint_every=10)
    whole = disk_room(1_050_000, 1_050_000, settings)
    alone = disk_room(1_050_000, 50_000, dataclasses.replace(settings, lora=8), in_folder=False)
    assert alone.checkpoint == 12 * 50_000 and alone.once == 4 * 1_000_000 and whole.once == 0
    assert alone.total == 2 * alone.checkpoint + alone.once < whole.total / 3
    assert disk_room(1_050_000, 50_000, dataclasses.replace(settings, lora=8)).once == 0


def test_rows_that_are_sampled_ahead_and_checkpoints_that_are_kept_are_counted():
    sizes = {"tasks_per_step": 4, "samples_per_task": 8, "max_tokens": 100, "steps": 100, "checkpoint_every": 10}
    now, ahead = Settings(**sizes, keep_checkpoints=1), Settings(**sizes, keep_checkpoints=5, max_staleness=2)
    one, two = (disk_room(1000, 0, each) for each in (now, ahead))
    assert one.checkpoint == 4000 and two.checkpoint == 4000 + 2 * 4 * 8 * 100 * 64
    assert (one.checkpoints, two.checkpoints) == (2, 5) and two.total == 5 * two.checkpoint
    assert disk_room(1000, 1000, now).checkpoint == 12000, "weights and two moments"
    assert disk_room(1000, 1000, Settings(**sizes, adam_states="bfloat16")).checkpoint == 8000, "moments of two bytes each"
    low = disk_room(1024, 1024, Settings(**sizes, adam_states="8bit"))
    assert low.checkpoint == 4096 + 2 * (1024 + 4 * 4), "moments of a byte each, and four scales"
    assert disk_room(1000, 0, Settings(**sizes | {"steps": 10})).checkpoints == 1, "only the last"
    assert disk_room(1000, 1000, Settings(**sizes | {"checkpoint_every": "none"})).total == 0
    kept = disk_room(1000, 1000, Settings(**sizes | {"checkpoint_every": "none"}, keep="best:score"))
    assert (kept.total, kept.best) == (4000, 4000), "what was asked for is written all the same"


def test_a_run_that_does_not_fit_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**9, 10**9 - 1_500_000, 1_500_000))
    with pytest.raises(UserError, match=r"has 1\.5 MB left, and this run writes .* MB: checkpoints of .*--lora"):
        up.train("grpo", "reverse:length=2", **SIZES, out=tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()
    assert not up.estimate("grpo", "reverse:length=2", **SIZES, out=tmp_path / "new" / "run").fits
    none = SIZES | {"checkpoint_every": "none"}
    assert up.estimate("grpo", "reverse:length=2", **none, out=tmp_path / "new" / "run").fits, "and what the message names helps"


def test_the_nearest_cure_is_the_one_that_works():
    room = DiskRoom(100, 3)
    assert "--checkpoint-every as large as --steps" in disk_problem(room, Path("/x"), 150)
    assert "Make room" in disk_problem(room, Path("/x"), 50)


def test_just_enough_is_enough(tmp_path, monkeypatch):
    needed = up.estimate("grpo", "reverse:length=2", **SIZES, out=tmp_path / "run").disk.total
    for free, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, free=free: Usage(10**9, 0, free))
        assert up.estimate("grpo", "reverse:length=2", **SIZES, out=tmp_path / "run").fits == fits
