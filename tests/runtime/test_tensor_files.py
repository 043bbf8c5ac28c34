"""Tensor files of checkpoints: read as they were written, here and by safetensors, and damage is noticed."""

from __future__ import annotations

import pytest
import torch

from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, Damaged


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
