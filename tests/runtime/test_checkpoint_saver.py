"""Checkpoints written beside the training hold what was there when they were asked for, and a disk that fails is heard of."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from upslope.errors import Remark
from upslope.runtime import checkpoint_saver
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter
from upslope.runtime.checkpoint_saver import LARGE, CheckpointSaver, auto_interval, is_due
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.snapshots import HostMemory, Snapshot


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    (tmp_path / "checkpoints").mkdir()
    return RunFolder(tmp_path)


def names(folder: RunFolder) -> list[str]:
    return [path.name for path in folder.checkpoints()]


def test_a_checkpoint_is_what_it_was_when_it_was_asked_for(folder, monkeypatch):
    gate, weights = threading.Event(), torch.ones(3)
    whole = CheckpointWriter.write_tensors
    monkeypatch.setattr(CheckpointWriter, "write_tensors", lambda *args: (gate.wait(60), whole(*args)))
    with CheckpointSaver(folder, keep=2) as saver:
        saver.save(folder.checkpoint(1), lambda files: files.write_tensors("w.safetensors", {"w": weights}, None))
        weights.fill_(7.0)  # the next update, while the disk is slow
        assert names(folder) == []
        gate.set()
        saver.wait()
        assert CheckpointReader(folder.checkpoint(1)).read_tensors("w.safetensors")["w"].tolist() == [1.0, 1.0, 1.0]
        saver.save(folder.checkpoint(2), lambda files: files.write_tensors("w.safetensors", {"w": weights}, None))
    assert CheckpointReader(folder.checkpoint(2)).read_tensors("w.safetensors")["w"].tolist() == [7.0, 7.0, 7.0]


def test_an_update_waits_until_weights_and_moments_are_copied_and_not_for_the_disk(folder, monkeypatch):
    weights, moments, counted, order = torch.ones(4, 3), torch.ones(5, dtype=torch.bfloat16), torch.ones(2), []
    gate, copy_still, whole = threading.Event(), Snapshot.copy_still, CheckpointWriter.write_tensors

    def slowly(self, streams):
        time.sleep(0.2)  # an update that did not wait would come first
        order.append("copied")
        return copy_still(self, streams)

    monkeypatch.setattr(checkpoint_saver, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(Snapshot, "copy_still", slowly)
    monkeypatch.setattr(CheckpointWriter, "write_tensors", lambda *args: (gate.wait(60), whole(*args)))
    held = {"w": weights, "row": weights[1], "m": moments, "c": counted, "none": torch.empty(0, 2)}
    with CheckpointSaver(folder, keep=2) as saver:
        for step in (1, 2):
            saver.save(folder.checkpoint(step), lambda files: files.write_tensors("t", held), still=(weights, moments))
            counted.fill_(step + 10)  # moves while the next step is sampled: copied before
            saver.wait_for_copy()
            order.append("update")
            for tensor in (weights, moments):
                tensor.add_(step)
            assert step == 2 or names(folder) == []  # nothing of it is written yet
            gate.set()
    assert order == ["copied", "update"] * 2
    for step, (weight, count) in {1: (1, 1), 2: (2, 11)}.items():
        found = CheckpointReader(folder.checkpoint(step)).read_tensors("t")
        assert {name: tensor.float().unique().tolist() for name, tensor in found.items()} == {
            "w": [weight], "row": [weight], "m": [weight], "c": [count], "none": []
        }  # fmt: skip
        assert all(found[name].shape == tensor.shape and found[name].dtype == tensor.dtype for name, tensor in held.items())


def test_behind_the_last_step_weights_are_written_from_where_they_are(folder, monkeypatch):
    weights, counted, gate, order = torch.ones(4, 3), torch.ones(2), threading.Event(), []
    whole = CheckpointWriter.write_tensors
    monkeypatch.setattr(CheckpointWriter, "write_tensors", lambda *args: (gate.wait(60), whole(*args), order.append("written")))
    monkeypatch.setattr(HostMemory, "make", lambda *args: pytest.fail("there is no need for a copy"))
    monkeypatch.setattr(checkpoint_saver, "free_bytes", lambda: 0)  # no copy would fit, and nobody waits all the same

    def moves():
        saver.wait_for_copy()
        order.append("moved")
        weights.fill_(7.0)

    with CheckpointSaver(folder, keep=2, size=100) as saver:
        held = {"w": weights, "c": counted}
        saver.save(folder.checkpoint(1), lambda files: files.write_tensors("t", held), still=(weights,), last=True)
        counted.fill_(9.0)  # as an evaluation may do with what is not still
        somebody = threading.Thread(target=moves)
        somebody.start()
        time.sleep(0.2)  # who did not wait would come first
        assert names(folder) == [] and order == []
        gate.set()
        somebody.join()
    assert order == ["written", "moved"]
    found = CheckpointReader(folder.checkpoint(1)).read_tensors("t")
    assert found["w"].unique().tolist() == [1.0] and found["c"].tolist() == [1.0, 1.0]


def test_few_bytes_are_copied_at_once(folder, monkeypatch):
    gate, copied_by = threading.Event(), []
    copy_still = Snapshot.copy_still
    monkeypatch.setattr(Snapshot, "copy_still", lambda *args: (copied_by.append(threading.get_ident()), copy_still(*args))[1])
    monkeypatch.setattr(CheckpointWriter, "write", lambda *args: gate.wait(60))
    weights = torch.ones(3)
    with CheckpointSaver(folder, keep=2) as saver:
        saver.save(folder.checkpoint(1), lambda files: files.write_tensors("w", {"w": weights}), still=(weights,))
        gate.set()
    assert copied_by == [threading.get_ident()]


def test_what_cannot_be_copied_is_told_before_the_update_and_leaves_no_checkpoint(folder, monkeypatch):
    def full(self, wanted):
        raise MemoryError("no room")

    monkeypatch.setattr(checkpoint_saver, "WORTH_A_THREAD", 0)
    weights = torch.ones(3)
    fill = lambda files: files.write_tensors("w", {"w": weights})  # noqa: E731
    with CheckpointSaver(folder, keep=2) as saver:
        saver.save(folder.checkpoint(1), fill, still=(weights,))
    monkeypatch.setattr(HostMemory, "make", full)
    with pytest.raises(MemoryError, match="no room"), CheckpointSaver(folder, keep=2) as saver:
        saver.save(folder.checkpoint(2), fill, still=(weights,))
        saver.wait_for_copy()
    with pytest.raises(RuntimeError, match="could not be copied") as told, CheckpointSaver(folder, keep=2) as saver:
        saver.save(folder.checkpoint(2), fill, still=(weights,))  # and the run ends there
    assert isinstance(told.value.__context__, MemoryError)
    assert names(folder) == ["step-000001"] and not list((folder.path / "checkpoints").glob(".*"))


def test_where_memory_is_short_the_training_waits_for_the_disk_and_is_told_once(folder, monkeypatch):
    monkeypatch.setattr(checkpoint_saver, "free_bytes", lambda: 10 * 10**9)
    with CheckpointSaver(folder, keep=2, size=26 * 10**8) as saver:
        with pytest.warns(
            Remark, match=r"a checkpoint of 2\.6 GB is not copied to memory first, of which 10\.0 GB are free"
        ) as told:
            for step in (1, 2):
                saver.save(folder.checkpoint(step), lambda files: files.write("a", b"1"))
                assert folder.checkpoint(step).is_dir()
        assert len(told) == 1 and not saver._memory
    with CheckpointSaver(folder, keep=2, size=25 * 10**8) as saver:
        saver.save(folder.checkpoint(3), lambda files: files.write_tensors("t", {"t": torch.ones(1)}))
        assert saver._memory


def test_a_failed_write_is_told_at_the_next_step_and_not_before_the_reason_that_ends_a_run(folder):
    def fails(files: CheckpointWriter) -> None:
        files.link_folder(Path("nowhere"))

    saver = CheckpointSaver(folder, keep=2)
    saver.save(folder.checkpoint(1), fails)
    with pytest.raises(Exception, match="nowhere"):
        saver.wait()
    saver.check()  # it is told once
    with pytest.raises(KeyError), saver:
        saver.save(folder.checkpoint(1), fails)
        raise KeyError
    with pytest.raises(Exception, match="nowhere"), CheckpointSaver(folder, keep=2) as saver:
        saver.save(folder.checkpoint(1), fails)
    assert names(folder) == [] and not list((folder.path / "checkpoints").iterdir())


def test_there_are_never_more_checkpoints_on_the_disk_than_are_to_be_kept(folder):
    seen = []

    def fill(files: CheckpointWriter) -> None:
        seen.append(len(names(folder)) + 1)
        files.write("a", b"1")

    with CheckpointSaver(folder, keep=2, size=1 << 62) as saver, pytest.warns(Remark, match="not copied"):
        for step in range(5):
            saver.save(folder.checkpoint(step), fill)
        saver.save(folder.best, lambda files: files.write("a", b"1"))
    assert seen == [1, 2, 2, 2, 2] and names(folder) == ["step-000003", "step-000004"] and folder.best.is_dir()


def test_linked_files_take_no_room_and_have_digests(tmp_path, folder):
    (tmp_path / "input").write_bytes(b"weights")
    with CheckpointSaver(folder, keep=2) as saver:
        saver.save(folder.start, lambda files: files.link(tmp_path / "input", "w"))
        saver.save(folder.checkpoint(0), lambda files: files.link_folder(folder.start))
    for path in (folder.start, folder.checkpoint(0)):
        assert (path / "w").stat().st_ino == (tmp_path / "input").stat().st_ino
        assert CheckpointReader(path, demand=True).read("w") == b"weights"


def test_without_links_they_are_copied(tmp_path, folder, monkeypatch):
    def refuse(*paths: object) -> None:
        raise OSError(18, "another disk")

    monkeypatch.setattr(checkpoint_saver.whole_folder.__wrapped__.__globals__["os"], "link", refuse)
    (tmp_path / "input").write_bytes(b"weights")
    with CheckpointSaver(folder, keep=2) as saver:
        saver.save(folder.start, lambda files: files.link(tmp_path / "input", "w"))
    assert (folder.start / "w").stat().st_nlink == 1
    assert CheckpointReader(folder.start, demand=True).read("w") == b"weights"


@pytest.mark.parametrize(
    ("seconds", "parameters", "interval"),
    [(0.001, 10**6, 10.0), (2.0, 10**8, 40.0), (30.0, LARGE, 120.0), (30.0, LARGE + 1, 600.0)],
)
def test_auto_spends_a_twentieth_of_the_time_on_writing(seconds, parameters, interval):
    assert auto_interval(seconds, parameters) == interval


def test_a_number_is_a_number_of_steps_and_auto_goes_by_the_clock(folder, monkeypatch):
    with CheckpointSaver(folder, keep=2) as saver:
        assert [is_due(3, step, saver, 1) for step in (1, 2, 3, 6, 7)] == [False, False, True, True, False]
        now = saver.asked
        monkeypatch.setattr(checkpoint_saver.time, "perf_counter", lambda: now + 9.9)
        assert not is_due("auto", 100, saver, 1)
        monkeypatch.setattr(checkpoint_saver.time, "perf_counter", lambda: now + 10.1)
        assert is_due("auto", 100, saver, 1)


def test_keeping_the_best_puts_no_checkpoint_off(folder, monkeypatch):
    with CheckpointSaver(folder, keep=2) as saver:
        saver.save(folder.checkpoint(1), lambda files: files.write("a", b"1"))
        asked = saver.asked
        saver.save(folder.best, lambda files: files.write("a", b"1"))
        assert saver.asked == asked
        monkeypatch.setattr(checkpoint_saver.time, "perf_counter", lambda: asked + 10.1)
        assert is_due("auto", 2, saver, 1)
