"""Tensor files of checkpoints: read as they were written, here and by safetensors, and damage is noticed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from upslope.runtime import checkpoint_files, staging
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, Damaged
from upslope.runtime.staging import Staging


def test_tensors_come_back_as_they_were_and_as_the_library_reads_them(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool)
    tensors = {str(kind): (torch.arange(7) % 3).to(kind) for kind in kinds}
    tensors |= {"none": torch.zeros(0, 3), "one": torch.tensor(2.5), "turned": torch.arange(6.0).view(2, 3).t()}
    with CheckpointWriter(tmp_path) as files:
        files.write_tensors("ours.safetensors", tensors, {"format": "pt"})
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs.safetensors")
    readings = [load_file(tmp_path / "ours.safetensors"), CheckpointReader(tmp_path).read_tensors("ours.safetensors")]
    (tmp_path / "digests.json").unlink()
    readings.append(CheckpointReader(tmp_path).read_tensors("theirs.safetensors"))
    for found in readings:
        assert found.keys() == tensors.keys()
        assert all(found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in tensors.items())
    with safe_open(tmp_path / "ours.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("length", [0, 7, 8, 30, 200])
def test_a_tensor_file_cut_anywhere_is_damaged_and_no_crash(length, tmp_path):
    with CheckpointWriter(tmp_path) as files:
        files.write_tensors("a.safetensors", {"x": torch.arange(100.0)})
    (tmp_path / "digests.json").unlink()  # even without digests
    file = tmp_path / "a.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(Damaged, match="damaged"):
        CheckpointReader(tmp_path).read_tensors("a.safetensors")


def test_memory_that_tensors_go_through_is_not_filled_again_while_it_is_read():
    tensors = [torch.randn(size) for size in (1, 7, 0, 64, 3, 100)]
    found: dict[int, bytes] = {}

    with ThreadPoolExecutor(1) as thread:

        def read(place, data):
            time.sleep(0.005)  # long after the next pieces could have been copied
            found[place] = bytes(data)

        def write(data):
            found[len(found)] = b""
            return thread.submit(read, len(found) - 1, data)

        through = Staging(write, piece=16, pieces=3, ahead=1)
        for tensor in tensors:
            through.send(tensor)
        through.finish()
    assert b"".join(found.values()) == b"".join(tensor.numpy().tobytes() for tensor in tensors)
    assert max(map(len, found.values())) == 16


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
)
def test_tensors_that_come_in_pieces_are_written_as_they_were_and_in_their_order(device, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "PIECE", 1 << 12)
    monkeypatch.setattr(checkpoint_files, "MANY", 1 << 12)  # so digests are taken by a thread
    if device == "cpu":
        monkeypatch.setattr(staging, "in_pieces", lambda tensor: tensor.is_contiguous() and tensor.dtype != torch.float64)
    tensors = {"long": torch.randn(100_000), "one": torch.tensor(2.5), "none": torch.zeros(0, 3), "half": torch.ones(5000).half()}
    tensors |= {"turned": torch.randn(300, 200).t(), "codes": torch.arange(200).to(torch.uint8), "here": torch.arange(9.0).double()}
    with CheckpointWriter(tmp_path) as files:
        there = {name: tensor if name == "here" else tensor.to(device) for name, tensor in tensors.items()}
        files.write_tensors("a.safetensors", there)
    found = CheckpointReader(tmp_path).read_tensors("a.safetensors")  # which holds them against their digest
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
