"""Memory of the machine: what is free of it, and a failed allocation in words."""

from __future__ import annotations

import pytest
import torch

from upslope.errors import UserError
from upslope.runtime import memory
from upslope.runtime.memory import explain_out_of_memory, free_bytes


def test_failed_allocations_are_explained_and_nothing_else_is():
    with pytest.raises(RuntimeError) as problem:
        torch.empty(2**58, dtype=torch.uint8)
    for error in (
        problem.value,
        MemoryError(),
        MemoryError("Unable to allocate 7.2 TiB"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore lines"),
        RuntimeError("CUDA error: out of memory"),
    ):
        found = explain_out_of_memory(error)
        assert isinstance(found, UserError), error
        assert "--max-tokens" in str(found) and "--lora" in str(found) and "\n" not in str(found)
    assert "the GPU's memory" in str(explain_out_of_memory(torch.OutOfMemoryError("CUDA out of memory.")))
    for error in (RuntimeError("shapes do not fit"), ValueError("out of memory"), KeyError("memory")):
        assert explain_out_of_memory(error) is None


def test_a_container_s_limit_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    machine = free_bytes()
    assert machine > 0
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 600000\ninactive_file 50000\n")
    assert free_bytes() == 350_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes() > 350_000
