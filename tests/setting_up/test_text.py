"""Components of text tasks: how a model with adapters is held, and that whole runs are the same either way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import upslope as up
from upslope.policies.adapters import adapters
from upslope.runtime.settings import Settings
from upslope.setting_up import text
from upslope.setting_up.text import apart_dtype

pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "reward": "regex:[a-m].*", "model": "tiny:layers=2,width=32", "lora": 4, "steps": 4, "tasks_per_step": 4, "samples_per_task": 4,
    "updates_per_step": 2, "warm_start": 0.0, "max_tokens": 6, "lr": 0.02, "warmup": 0, "eval_problems": 4, "checkpoint_every": 2,
    "keep_checkpoints": 2, "record": "none", "threads": 1, "audit": "off", "watch_kl": True,
}  # fmt: skip


def test_where_adapters_are_computed_apart() -> None:
    assert apart_dtype(Settings(device="cuda")) == torch.bfloat16
    assert apart_dtype(Settings(device="cuda", precision="float32")) is None and apart_dtype(Settings(device="cpu")) is None


@pytest.mark.parametrize("method", ["grpo", "online-dpo"])
def test_a_run_with_adapters_apart_is_that_of_merged_ones(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, in float32 on a CPU: sampling, updates, the KL to the start, evaluation, checkpoints and going on."""
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"w{number}", "answer": "a"}) + "\n" for number in range(10)))
    merged = up.train(method, str(file), **SMALL, out=tmp_path / "merged")
    assert not merged.policy.apart
    monkeypatch.setattr(text, "apart_dtype", lambda settings: torch.float32)
    apart = up.train(method, str(file), **SMALL, out=tmp_path / "apart")
    assert apart.policy.apart
    for mine, theirs in zip(apart.metrics, merged.metrics, strict=True):
        assert mine["reward"] == theirs["reward"] and mine["kl_start"] == pytest.approx(theirs["kl_start"], abs=1e-5)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    own, expected = adapters(apart.policy.model), adapters(merged.policy.model)
    assert max(float((own[name] - expected[name]).abs().max()) for name in own) < 1e-3
    assert max(float(value.abs().max()) for name, value in own.items() if "lora_B" in name) > 0.02, "else nothing is compared"
    shutil.rmtree(apart.folder.latest())
    (apart.path / "summary.json").unlink()
    again = up.resume(apart.path)
    assert again.policy.apart and all(torch.equal(value, own[name]) for name, value in adapters(again.policy.model).items())
