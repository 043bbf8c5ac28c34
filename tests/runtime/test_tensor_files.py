"""Tensor files of checkpoints: read as they were written, here and by safetensors, and damage is noticed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from upslope.runtime.checkpoint_files import MANY, CheckpointReader, CheckpointWriter, Damaged
from upslope.runtime.staging import PIECE, Staging


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

    with ThreadPoolExecutor(1) as thread:  # so pieces are read one after the other, and late
        last = thread.submit(torch.randn(500, 500).matrix_power, 50)

        def write(data):
            place = len(found)
            found[place] = b""
            return thread.submit(lambda: found.__setitem__(place, bytes(data)))

        staging = Staging(write, piece=16, pieces=3, ahead=1)
        for tensor in tensors:
            staging.send(tensor)
        staging.finish()
        last.result()
    assert b"".join(found.values()) == b"".join(tensor.numpy().tobytes() for tensor in tensors)
    assert max(map(len, found.values())) == 16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_of_a_gpu_come_back_as_they_were(tmp_path):
    tensors = {"long": torch.randn(PIECE), "one": torch.tensor(2.5), "none": torch.zeros(0, 3), "many": torch.randn(3, MANY)}
    tensors |= {"turned": torch.randn(300, 200).t(), "codes": torch.arange(200).to(torch.uint8)}
    with CheckpointWriter(tmp_path) as files:
        files.write_tensors(
            "a.safetensors", {name: tensor.to("cuda") for name, tensor in tensors.items()} | {"here": torch.ones(9)}
        )
    found = CheckpointReader(tmp_path).read_tensors("a.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in (tensors | {"here": torch.ones(9)}).items())
