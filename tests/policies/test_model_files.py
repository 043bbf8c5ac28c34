"""Folders with a model that is not whole: each is refused in one line that says what is wrong, and none is filled up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from model_families import small_config, small_model
from safetensors.torch import load_file, save_file

from upslope.errors import UserError
from upslope.policies import load_language_model
from upslope.policies.tiny import character_tokenizer, tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny(0, layers=2, width=16, heads=2).save(tmp_path / "model")
    return tmp_path / "model"


def change_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(folder: Path, *words: str) -> str:
    with pytest.raises(UserError) as problem:
        load_language_model(str(folder), 0)
    said = str(problem.value)
    assert "\n" not in said and len(said) < 800, said
    for word in (str(folder), *words):
        assert word in said
    return said


def test_a_missing_tensor_is_named_and_not_made_up(folder):
    change_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    refused(folder, "lacks model.layers.1.mlp.up_proj.weight")


def test_a_tensor_too_many_is_named(folder):
    change_tensors(folder, lambda tensors: tensors.update({"score.weight": torch.zeros(3)}))
    refused(folder, "score.weight", "LlamaForCausalLM")


def test_a_tensor_of_another_size_is_named_with_both(folder):
    change_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}))
    refused(folder, "model.norm.weight ([3] in the file, [16] in config.json)")


def test_of_many_missing_tensors_some_are_named_and_all_are_counted(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    refused(folder, "model.layers.2.", "and 6 more")


def test_tied_weights_and_rotary_tables_of_old_files_are_not_missed_or_refused(folder):
    change_tensors(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    policy = load_language_model(str(folder), 0)
    assert policy.model.lm_head.weight is policy.model.model.embed_tokens.weight


def cut(name: str):
    def cutting(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return cutting


def written(name: str, content: str | bytes):
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def without(*names: str):
    return lambda folder: [(folder / name).unlink() for name in names]


def lost_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (cut("model.safetensors"), "SafetensorError"),
        (without("model.safetensors"), "model.safetensors"),
        (lost_shard, "model-00001-of-00002.safetensors"),
        (cut("config.json"), "not JSON"),
        (written("config.json", b"\xff\xfe\x00"), "not JSON"),
        (written("config.json", "[1]"), "not an object"),
        (written("config.json", "[" * 100_000), "nested too deep"),
        (written("config.json", '{"a":' * 100_000 + "1" + "}" * 100_000), "nested too deep"),
        (written("config.json", '{"model_type": "nothing-we-know"}'), "nothing-we-know"),
        (written("config.json", '{"model_type": "llama", "hidden_size": "wide"}'), "hidden_size"),
        (written("config.json", '{"model_type": "t5"}'), "encoder with a decoder"),
        (cut("generation_config.json"), "not JSON"),
        (without("tokenizer.json", "tokenizer_config.json"), "tokenizer"),
        (cut("tokenizer.json"), "tokenizer"),
        (written("tokenizer.json", '{"version": "1.0", "model": {"type": "BPE", "vocab": 3}}'), "tokenizer"),
        (written("tokenizer.json", "[" * 100_000), "tokenizer"),
        (written("tokenizer_config.json", "["), "tokenizer"),
    ],
)
def test_files_that_are_cut_off_missing_or_garbled(folder, spoil, word, capfd):
    spoil(folder)
    refused(folder, word)
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_a_tokenizer_that_is_made_of_a_family_s_name_alone_is_refused(tmp_path):
    small_model(small_config("qwen2")).save_pretrained(tmp_path)
    refused(tmp_path, "no tokenizer")


def test_a_run_refuses_mamba_before_it_begins(tmp_path):
    import upslope as up

    small_model(small_config("mamba", vocab_size=128)).save_pretrained(tmp_path / "mamba")
    character_tokenizer().save_pretrained(tmp_path / "mamba")
    with pytest.raises(UserError, match="MambaForCausalLM cannot be trained here"):
        up.train("grpo", "sort", model=str(tmp_path / "mamba"), steps=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_of_another_model_is_refused_before_the_run(tmp_path):
    from upslope.rollout.parity_check import load_checked

    small_model(small_config("llama")).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"gives the id \d+, and the model has only 61 embeddings"):
        load_checked(str(tmp_path), 0)
