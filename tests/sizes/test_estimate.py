"""The estimate of a run before anything is loaded: for every kind of model and task, the same as when it has begun."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from model_families import small_config, small_model
from qwen_shapes import shape

import upslope as up
from upslope.policies.tiny import character_tokenizer
from upslope.runtime.settings import Settings
from upslope.sizes.card import Card
from upslope.sizes.estimate import DoesNotFit, text_estimate
from upslope.sizes.settle import settled
from upslope.sizes.work import Work

SMALL = {
    "steps": 2,
    "tasks_per_step": 2,
    "samples_per_task": 2,
    "max_tokens": 4,
    "eval_problems": 2,
    "threads": 1,
    "warm_start": 0.0,
}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A model in one file, and the same in several."""
    model, found = small_model(small_config("qwen2", vocab_size=128)), {}
    for name, size in (("single", "1GB"), ("sharded", "40KB")):
        found[name] = tmp_path / name
        model.save_pretrained(found[name], max_shard_size=size)
        character_tokenizer().save_pretrained(found[name])
    assert len(list(found["sharded"].glob("*.safetensors"))) > 2
    return found


def nothing_is_loaded(monkeypatch) -> None:
    import safetensors.torch
    import transformers

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", lambda *a, **b: pytest.fail("weights were loaded"))
    monkeypatch.setattr(safetensors.torch, "load_file", lambda *a, **b: pytest.fail("weights were loaded"))


@pytest.mark.parametrize("kind", ["single", "sharded"])
@pytest.mark.parametrize("lora", [0, 4])
def test_a_folder_is_estimated_from_its_config_and_headers(kind, lora, folders, tmp_path, monkeypatch):
    asked = dict(method="grpo", task="reverse:length=2", model=str(folders[kind]), lora=lora, **SMALL)
    with monkeypatch.context() as patched:
        nothing_is_loaded(patched)
        found = up.estimate(**asked, out=tmp_path / "run")
    assert not (tmp_path / "run").exists() and found.fits
    run = up.train(**asked, out=tmp_path / "run")
    begun = run.estimate
    assert begun.table()["memory"] == found.table()["memory"] and (begun.held, begun.trained) == (found.held, found.trained)
    assert found.trained == sum(parameter.numel() for group in run.policy.trainable().values() for parameter in group)
    assert found.held == run.policy.parameter_count()
    assert {"recompute": "off"}.items() <= run.table["settings"].items() and "slice_tokens" not in run.table["settings"]


def test_a_file_that_is_missing_cut_short_or_of_another_model_is_found(folders):
    folder = folders["sharded"]
    asked = dict(method="grpo", task="reverse:length=2", model=str(folder), **SMALL)
    shard = sorted(folder.glob("*.safetensors"))[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-8])
    with pytest.raises(up.UserError, match=f"{shard.name}' cannot be read: it is cut short"):
        up.estimate(**asked)
    shard.unlink()
    with pytest.raises(up.UserError, match=f"{shard.name}' is missing"):
        up.estimate(**asked)
    shard.write_bytes(whole)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    with pytest.raises(up.UserError, match=r"tensors of another size than its config.json says: .*mlp"):
        up.estimate(**asked)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 6, "layer_types": None}))
    with pytest.raises(up.UserError, match=r"lacks model.layers.4"):
        up.estimate(**asked)


def test_objects_and_tasks_of_all_kinds(tmp_path, folders):
    model = small_model(small_config("gpt2", vocab_size=128))
    given = up.estimate("grpo", "reverse:length=2", model=(model, character_tokenizer()), **SMALL)
    assert given.held == sum(parameter.numel() for parameter in model.parameters()) and given.memory is not None
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    control = up.estimate("ppo", "gym:CartPole-v1", steps=2, envs=4, horizon=16)
    assert control.per_step == 64 and control.fits and control.held == control.trained
    stored = up.estimate("sac", "gym:Pendulum-v1", steps=2)
    assert "remembered rows" in stored.memory


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is asked where there is no GPU")
def test_a_gpu_that_is_not_here_is_told_by_its_memory(tmp_path):
    asked = dict(method="dr-grpo", task="reverse:length=2", model="tiny", device="cuda")
    with pytest.raises(up.UserError, match=r"torch sees no GPU here. Say how much memory it has: --memory 80GB"):
        up.estimate(**asked)
    found = up.estimate(**asked, memory="8GB")
    assert found.fits and found.available == 8 * 10**9 and "CUDA's own" in found.memory and found.slice_tokens > 0
    with pytest.raises(up.UserError, match=r"torch sees no GPU here. Leave it out"):
        up.train(**asked, out=tmp_path / "run")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU that is here has another memory")
@pytest.mark.parametrize(("method", "judge", "alone"), [
    ("sppo", "", True), ("sppo", "policy", True), ("sppo", "http://127.0.0.1:9", True), ("sppo", "FOLDER", False),
    ("nash-md", "policy", False),
])  # fmt: skip
def test_rows_leave_room_for_other_models_on_the_card(method, judge, alone, folders):
    """A judge, and a mixture that answers in the policy's place, are in no plan: rows take no more than their share then."""
    big = dict(tasks_per_step=64, samples_per_task=16, max_tokens=400, slice_tokens=1000)
    judge = str(folders["single"]) if judge == "FOLDER" else judge
    found = up.estimate(method, "reverse:length=4", model="tiny", device="cuda", memory="1.5GB", judge=judge, **big)
    assert found.at_once.pages and found.total <= 0.851 * found.available and (found.total > 0.84 * found.available) == alone


def test_a_dry_run_says_what_loading_would(folders, monkeypatch):
    asked = dict(method="grpo", task="reverse:length=2", model=str(folders["single"]), lora=4, base_precision="nf4", **SMALL)
    assert up.estimate(**asked).fits
    monkeypatch.setattr("upslope.setting_up.text_sizes.loading_problem", lambda *given: "it cannot be read")
    assert up.estimate(**asked).problems == ("it cannot be read",)


def test_a_model_larger_than_memory_is_refused_before_it_is_loaded(folders, tmp_path, monkeypatch):
    from upslope.sizes import card

    monkeypatch.setattr(card, "free_bytes", lambda: 100_000)
    nothing_is_loaded(monkeypatch)
    with pytest.raises(DoesNotFit, match=r"No setting makes it fit .* take a smaller --model"):
        up.train("grpo", "reverse:length=2", model=str(folders["single"]), **SMALL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_lines_of_a_run_say_what_the_table_says():
    found = up.estimate("grpo", "reverse:length=2", model="tiny", **SMALL, lora=4)
    lines = found.lines()
    assert [line.split()[0] for line in lines] == ["parameters", "memory", "disk", "a"]
    assert "of them learn" in lines[0] and "in all" not in lines[1] and "2 checkpoints of" in lines[2]
    none = up.estimate("grpo", "reverse:length=2", model="tiny", **SMALL, checkpoint_every="none", recompute="all", slice_tokens=6)
    assert "no checkpoints (--checkpoint-every none)" in none.lines()[2] and "all layers recomputed" in none.lines()[3]
    assert "in slices of at most" in none.lines()[3] and none.disk.total == 0


@pytest.mark.parametrize("gigabytes, told", [
    (80, r"up to \d+ of 256 answers at once, in [\d,]+ pages of 64 tokens that they share"),
    (400, None),
])  # fmt: skip
def test_it_is_told_how_many_answers_are_sampled_at_once(gigabytes: int, told: str | None):
    work, card = Work(32, 8, 16384, [64] * 32, recompute="auto"), Card("cuda", int(gigabytes * 1e9), "a GPU")
    settings = Settings().resolved("text", "tiny", max_tokens=16384)
    found = text_estimate(shape("1.5B"), settled(shape("1.5B"), work, card), settings, card)
    lines = [line for line in found.lines() if line.startswith("sampling")]
    assert found.table()["sampled_at_once"]["answers"] == 256
    if told is None:
        assert not lines and found.at_once == (256, 0)
    else:
        assert re.search(told, *lines) and found.at_once.pages > 5000
