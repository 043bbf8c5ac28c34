"""The memory of a step: estimated before it is taken, and a failed allocation in words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from model_families import small_config, small_model

import upslope as up
from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel
from upslope.policies.tiny import character_tokenizer, tiny
from upslope.rollout import step_memory
from upslope.rollout.step_memory import StepSizes, check_memory
from upslope.runtime import memory
from upslope.runtime.memory import explain_out_of_memory, free_bytes
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up

GIB = 2**30


def total(policy: LanguageModel, *sizes, **more) -> int:
    return step_memory.step_memory(policy, StepSizes(*sizes, **more)).total


def test_a_step_takes_more_with_everything_that_makes_it_larger():
    policy = tiny(0)
    plain = total(policy, 8, 4, 64, [100] * 20)
    assert total(policy, 16, 4, 64, [100] * 20) > plain
    assert total(policy, 8, 8, 64, [100] * 20) > plain
    assert total(policy, 8, 4, 128, [100] * 20) > plain
    assert total(policy, 8, 4, 64, [100] * 19 + [400]) > plain
    assert total(policy, 8, 4, 64, [100] * 20 + [3]) == plain, "only those that can meet in a step count, the longest first"
    weights = 4 * policy.parameter_count()
    assert total(policy, 8, 4, 64, [100] * 20, copies=2) == plain + 2 * weights
    assert step_memory.step_memory(policy, StepSizes(8, 4, 64)).optimiser == 3 * weights
    two = total(policy, 8, 4, 64, [100] * 20, learners=2) - plain
    assert two >= 4 * weights and total(policy, 8, 4, 64, [100] * 20, learners=3) == plain + 2 * two
    policy.add_lora(2, seed=0)
    learned = 4 * sum(parameter.numel() for parameter in policy.trainable()["policy"])
    adapted = total(policy, 8, 4, 64, [100] * 20)
    assert total(policy, 8, 4, 64, [100] * 20, copies=2) == adapted + 2 * learned, "copies share what never moves"
    assert total(policy, 8, 4, 64, [100] * 20, sampled_here=False) < plain


def test_a_very_long_prompt_on_a_model_without_a_limit_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(step_memory, "free_bytes", lambda: 16 * GIB)
    model = tmp_path / "bloom"
    small_model(small_config("bloom", vocab_size=128)).save_pretrained(model)
    character_tokenizer().save_pretrained(model)
    rows = [{"prompt": "x" * 40_000 * (n == 7) + str(n), "answer": "1"} for n in range(12)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError) as problem:
        up.train("grpo", str(tmp_path / "p.jsonl"), reward="exact", model=str(model), max_tokens=8, out=tmp_path / "run")
    said = str(problem.value)
    assert re.search(r"a step would take about \d+.\d GiB .* and 16.0 GiB are free. Its longest prompt has 40002 tokens", said)
    assert all(flag in said for flag in ("--max-tokens", "--samples-per-task", "--tasks-per-step", "--lora")) and "\n" not in said
    assert not (tmp_path / "run").exists()
    method, settings = up.method("grpo"), Settings(max_tokens=8)
    set_up(method, str(tmp_path / "p.jsonl"), str(model), settings, "exact", for_training=False)


def test_what_fits_is_not_refused(monkeypatch):
    policy = tiny(0)
    needed = total(policy, 8, 4, 64)
    monkeypatch.setattr(step_memory, "free_bytes", lambda: needed)
    check_memory(policy, StepSizes(8, 4, 64))
    monkeypatch.setattr(step_memory, "free_bytes", lambda: needed - 1)
    with pytest.raises(UserError, match="a step would take about"):
        check_memory(policy, StepSizes(8, 4, 64))


def test_a_model_that_calls_its_sizes_by_other_names_is_let_through(monkeypatch):
    monkeypatch.setattr(step_memory, "free_bytes", lambda: 0)
    policy = tiny(0)
    policy.model.config = SimpleNamespace(get_text_config=SimpleNamespace)
    check_memory(policy, StepSizes(8, 4, 64))


MEASURED = """
import gc, json, re, sys
from pathlib import Path
import upslope as up
from upslope.rollout import step_memory

def status(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

seen = {}

def check(policy, sizes):
    seen["estimate"] = step_memory.step_memory(policy, sizes).total
    gc.collect()
    seen["before"] = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew

step_memory.check_memory = check
folder, model, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
up.train("grpo", folder + "/p.jsonl", reward=folder + "/reward.py:score", model=model, out=folder + "/run", **settings)
print(json.dumps([seen["estimate"], status("VmHWM") - seen["before"]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read from Linux")
@pytest.mark.parametrize(
    ("kind", "sizes", "prompt"),
    [
        ("llama", {"hidden_size": 384, "intermediate_size": 1024, "vocab_size": 4000, "max_position_embeddings": 512}, 60),
        ("bloom", {"hidden_size": 64, "vocab_size": 2000}, 1500),
    ],
)
def test_the_estimate_is_within_a_factor_of_two_of_the_peak(kind, sizes, prompt, tmp_path):
    small_model(small_config(kind, **sizes)).save_pretrained(tmp_path / "model")
    character_tokenizer().save_pretrained(tmp_path / "model")
    rows = [{"prompt": f"{n:02}" + "x" * (prompt - 2), "answer": "1"} for n in range(12)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "reward.py").write_text(
        "def score(prompts, responses, answers):\n    return [float((sum(map(ord, r)) + i) % 3) for i, r in enumerate(responses)]\n"
    )
    settings = {"steps": 2, "tasks_per_step": 4, "samples_per_task": 4, "max_tokens": 24, "eval_problems": 2, "threads": 1}
    command = [sys.executable, "-W", "ignore", "-c", MEASURED, str(tmp_path), str(tmp_path / "model"), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    estimate, peak = json.loads(done.stdout.splitlines()[-1])
    assert 0.5 < estimate / peak < 2, f"estimated {estimate / 2**20:.0f} MiB, took {peak / 2**20:.0f} MiB"


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
