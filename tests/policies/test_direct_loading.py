"""Models that are read straight to their place are those that `transformers` loads, and take no second copy of their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import small_config, small_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from upslope.policies.adapters import adapters, add_adapters
from upslope.policies.direct_loading import load_directly
from upslope.policies.language_model import LanguageModel
from upslope.policies.loading import _whole_model, from_folder
from upslope.policies.tiny import character_tokenizer
from upslope.rollout import parity_check

HALF = torch.bfloat16


def written(folder: Path, kind: str, dtype: torch.dtype = HALF, shards: str = "5GB", **changes: Any) -> Path:
    """A small model of a family in a folder."""
    small_model(small_config(kind, **{"vocab_size": 128, **changes})).to(dtype).save_pretrained(folder, max_shard_size=shards)
    character_tokenizer().save_pretrained(folder)
    return folder


def directly(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return load_directly(folder, AutoConfig.from_pretrained(folder), "cpu", dtype)


def by_transformers(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def tied(model: Any) -> list[list[str]]:
    named = list(model.named_parameters(remove_duplicate=False))
    return [sorted(name for name, other in named if other is own) for own in model.parameters()]


def check_same(ours: Any, theirs: Any) -> None:
    for one, other in (
        (ours.state_dict(), theirs.state_dict()),
        (dict(ours.named_buffers()), dict(theirs.named_buffers())),
    ):
        assert one.keys() == other.keys() and all(one[name].dtype == other[name].dtype for name in one)
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert type(ours) is type(theirs) and tied(ours) == tied(theirs) and not ours.training
    assert [each.requires_grad for each in ours.parameters()] == [each.requires_grad for each in theirs.parameters()]
    assert ours.config.to_dict() == theirs.config.to_dict() and str(ours.name_or_path) == str(theirs.name_or_path)
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma", "gemma2", "gpt2", "opt", "apertus"])
def test_what_is_read_is_what_transformers_loads(kind, tmp_path):
    folder = written(tmp_path, kind, torch.float16 if kind == "qwen3" else HALF)
    check_same(directly(folder), by_transformers(folder))


def test_shards_and_old_generation_settings_and_names_without_their_prefix(tmp_path):
    folder = written(tmp_path / "shards", "qwen2", shards="20KB", tie_word_embeddings=True)
    assert len(list(folder.glob("*.safetensors"))) > 2
    check_same(directly(folder), by_transformers(folder))
    old = written(tmp_path / "old", "gpt2")
    (old / "generation_config.json").unlink()
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(old / "model.safetensors").items()}
    save_file(tensors, old / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps(config | {"temperature": 0.7}))
    check_same(directly(old), by_transformers(old))


def test_what_is_converted_or_tied_against_the_file_is_left_to_transformers(tmp_path):
    experts = written(tmp_path / "experts", "mixtral")
    assert directly(experts) is None
    check_same(_whole_model(experts, "cpu", torch.float32), by_transformers(experts))
    both = written(tmp_path / "both", "llama", tie_word_embeddings=True)
    tensors = load_file(both / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, both / "model.safetensors", metadata={"format": "pt"})
    assert directly(both) is None
    loaded = _whole_model(both, "cpu", torch.float32)
    assert torch.equal(loaded.lm_head.weight, tensors["lm_head.weight"].float())
    assert torch.equal(loaded.model.embed_tokens.weight, tensors["model.embed_tokens.weight"].float())


def test_float32_on_a_cpu_stays_in_the_mapped_file(tmp_path):
    assert directly(written(tmp_path, "llama", torch.float32)) is None


def test_a_base_is_held_in_half_precision_and_its_adapters_are_those_of_a_whole_one(tmp_path, monkeypatch):
    folder = written(tmp_path, "llama", torch.float32)
    half, whole = from_folder(folder, dtype=HALF), from_folder(folder)
    assert all(torch.equal(half.model.state_dict()[name], each.to(HALF)) for name, each in whole.model.state_dict().items())
    frequencies = dict(half.model.named_buffers())["model.rotary_emb.inv_freq"]
    assert torch.equal(frequencies, dict(whole.model.named_buffers())["model.rotary_emb.inv_freq"])
    monkeypatch.setattr(parity_check, "_mark_of", lambda folder: None)
    assert not parity_check.load_checked(str(folder), 0, "cpu", HALF).plain
    before = {name: each.clone() for name, each in half.model.state_dict().items()}
    for policy in (half, whole):
        add_adapters(policy.model, 4, 7)
    drawn, expected = adapters(half.model), adapters(whole.model)
    assert len(drawn) == 2 * 7 * 4 and all(each.dtype == torch.float32 for each in drawn.values())
    assert all(torch.equal(drawn[name], expected[name]) for name in expected)
    now = {name.replace(".base_layer.", "."): each for name, each in half.model.state_dict().items()}
    assert all(torch.equal(now[name], each) and now[name].dtype == HALF for name, each in before.items())


def test_a_model_that_is_computed_by_transformers_stays_whole(tmp_path, monkeypatch):
    folder = written(tmp_path, "gpt2")
    assert next(directly(folder, HALF).parameters()).dtype == torch.float32
    known = written(tmp_path / "known", "llama")
    monkeypatch.setattr(parity_check, "_mark_of", lambda folder: None)
    monkeypatch.setattr(parity_check, "_own_gap", lambda policy, dtype: 1.0)
    with pytest.warns(UserWarning, match="runs through transformers"):
        policy = parity_check.load_checked(str(known), 0, "cpu", HALF)
    assert policy.plain and next(policy.model.parameters()).dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_weights_go_straight_to_a_gpu(tmp_path, monkeypatch):
    folder = written(tmp_path, "llama")
    monkeypatch.setattr(parity_check, "_mark_of", lambda folder: None)
    policy, theirs = parity_check.load_checked(str(folder), 0, "cuda", HALF), by_transformers(folder)
    assert not policy.plain and all(each.is_cuda for each in (*policy.model.parameters(), *policy.model.buffers()))
    own = policy.model.state_dict()
    assert all(torch.equal(own[name].cpu(), each.to(HALF)) for name, each in theirs.state_dict().items())


def test_loading_takes_little_more_memory_than_the_weights(tmp_path):
    """In half precision on the disk, which `transformers` maps beside the float32 that it makes of it."""
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        pytest.skip("only Linux tells the most memory that was held since some moment")
    config = small_config("llama", hidden_size=256, intermediate_size=2048, num_hidden_layers=24, vocab_size=1000)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=HALF)
    weights = sum(parameter.numel() for parameter in model.parameters()) * 4
    assert weights > 150e6
    model.to_empty(device="cpu").save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    del model
    from_folder(tmp_path)  # imports
    try:
        clear.write_text("5")
    except OSError:
        pytest.skip("the system does not allow to ask for it")
    before = memory("VmRSS")
    policy = from_folder(tmp_path)
    assert isinstance(policy, LanguageModel) and memory("VmHWM") - before <= 1.3 * weights


def memory(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
