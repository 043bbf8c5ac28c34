"""A model given as objects: trained like the same model from a folder, kept with the run, and left as it was."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from model_families import small_config, small_model
from safetensors.torch import load_file

import upslope as up
from upslope.errors import UserError
from upslope.policies.given import given_model
from upslope.policies.tiny import tiny

REWARD = """def early(prompts, responses, answers):
    return [sum(letter < "m" for letter in response) / max(len(response), 1) for response in responses]
"""


@pytest.fixture
def small(tmp_path: Path) -> dict:
    """Settings of a run in which an untrained model earns rewards that differ."""
    (tmp_path / "rewards.py").write_text(REWARD)
    rows = [json.dumps({"prompt": f"{number}+1=", "answer": str(number + 1)}) for number in range(20)]
    (tmp_path / "sums.jsonl").write_text("\n".join(rows))
    return {
        "task": str(tmp_path / "sums.jsonl"), "reward": f"{tmp_path / 'rewards.py'}:early", "steps": 2, "tasks_per_step": 2,
        "samples_per_task": 2, "eval_problems": 4, "max_tokens": 4, "lr": 1e-3, "threads": 1, "device": "cpu", "warmup": 0,
        "schedule": "constant",
    }  # fmt: skip


@pytest.fixture
def pair():
    made = tiny(3, layers=1, width=32)
    return made.model, made.tokenizer


@pytest.fixture
def folder(pair, tmp_path: Path) -> Path:
    model, tokenizer = pair
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def numbers(run) -> list[dict]:
    def timed(key: str) -> bool:
        return "second" in key or "memory" in key or "per_s" in key

    return [{key: value for key, value in record.items() if not timed(key)} for record in run.metrics]


def test_a_model_given_as_objects_trains_as_from_its_folder_and_stays_as_it_was(pair, folder: Path, small: dict, tmp_path: Path):
    before = copy.deepcopy(pair[0].state_dict())
    ours, theirs = (
        up.train("grpo", model=pair, out=tmp_path / "a", **small),
        up.train("grpo", model=folder, out=tmp_path / "b", **small),
    )
    assert numbers(ours) == numbers(theirs)
    assert all(torch.equal(value, before[key]) for key, value in pair[0].state_dict().items())
    moved = ours.policy.model.state_dict()
    assert any(not torch.equal(value, before[key]) for key, value in moved.items())
    assert all(torch.equal(value, theirs.policy.model.state_dict()[key]) for key, value in moved.items())


@pytest.mark.slow
def test_it_is_kept_with_the_run_and_resumed_by_another_process_to_the_same_end(pair, small: dict, tmp_path: Path):
    whole = up.train("grpo", model=pair, out=tmp_path / "whole", **small)
    part = up.train("grpo", model=pair, out=tmp_path / "part", **small | {"steps": 1})
    assert (part.table["model"], part.table["unkept"]) == ("{run}/model", [])
    script = f"import upslope as up; print(up.resume({str(part.path)!r}, steps=2).metrics[-1]['grad_norm'])"
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", script], cwd="/", env=alone, capture_output=True, text=True, check=True).stdout
    assert float(told) == whole.metrics[-1]["grad_norm"] > 0


def test_weights_that_are_in_the_files_they_came_from_are_linked(folder: Path, small: dict, tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    run = up.train("grpo", model=(model, tokenizer), out=tmp_path / "run", **small)
    kept, first = run.path / "model" / "model.safetensors", folder / "model.safetensors"
    assert kept.samefile(first)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    changed = up.train("grpo", model=(model, tokenizer), out=tmp_path / "changed", **small)
    kept = changed.path / "model" / "model.safetensors"
    assert not kept.samefile(first)
    own = load_file(kept)
    assert torch.equal(own.get("lm_head.weight", own.get("model.embed_tokens.weight")), model.lm_head.weight)


def test_half_precision_is_kept_as_it_is_and_trained_in_float32(pair, small: dict, tmp_path: Path):
    half = copy.deepcopy(pair[0]).bfloat16()
    run = up.train("grpo", model=(half, pair[1]), out=tmp_path / "run", **small)
    assert {value.dtype for value in load_file(run.path / "model" / "model.safetensors").values()} == {torch.bfloat16}
    assert {value.dtype for value in run.policy.model.parameters()} == {torch.float32}
    assert {value.dtype for value in half.parameters()} == {torch.bfloat16}


def test_the_policy_of_a_run_and_a_run_are_models(small: dict, tmp_path: Path):
    first = up.train("grpo", model="tiny:layers=1,width=32", warm_start=0.0, out=tmp_path / "first", **small, lora=2)
    second = up.train("grpo", model=first.policy, out=tmp_path / "second", **small)
    third = up.train("grpo", model=first, out=tmp_path / "third", **small)
    assert numbers(second) == numbers(third)
    assert second.plan.settings.warm_start == 0.0


def other_models() -> dict[str, object]:
    import transformers
    from peft import LoraConfig, get_peft_model

    made = tiny(3, layers=1, width=32)
    t5 = transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    vit = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4
    )
    adapted = get_peft_model(copy.deepcopy(made.model), LoraConfig(r=2, target_modules=["q_proj"]))
    return {
        "no model 'nowhere'": "nowhere",
        "no model of transformers": (torch.nn.Linear(2, 2), made.tokenizer),
        "without its tokenizer. Give model=\\(model, tokenizer\\)": made.model,
        "a tokenizer alone": made.tokenizer,
        "the model comes first": (made.tokenizer, made.model),
        "as its tokenizer. Give what AutoTokenizer": (made.model, "gpt2"),
        "merge_and_unload": (adapted, made.tokenizer),
        "with adapters in it": (adapted.get_base_model(), made.tokenizer),
        "an encoder with a decoder": (transformers.T5ForConditionalGeneration(t5), made.tokenizer),
        "ViTForImageClassification, which AutoModelForCausalLM": (transformers.ViTForImageClassification(vit), made.tokenizer),
        "LlamaModel, which AutoModelForCausalLM does not load": (made.model.model, made.tokenizer),
        "is the class LlamaForCausalLM, not a model": (type(made.model), made.tokenizer),
        "model is 7 \\(int\\)": 7,
        "model is None \\(NoneType\\)": None,
    }  # fmt: skip


def test_what_is_no_causal_language_model_with_its_tokenizer_is_refused_before_the_run(small: dict, tmp_path: Path):
    for told, value in other_models().items():
        with pytest.raises(UserError, match=told):
            up.train("grpo", model=value, out=tmp_path / "run", **small)
    with pytest.raises(UserError, match=r"give both: model=\(model, tokenizer\)"):
        up.train("grpo", model=tiny(3).model, tokenizer=tiny(3).tokenizer, out=tmp_path / "run", **small)
    assert not (tmp_path / "run").exists()


def test_a_copy_that_does_not_fit_memory_is_refused_with_the_cure(
    pair, small: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("upslope.policies.given.free_bytes", lambda: 1000)
    with pytest.raises(UserError, match=r"trains a copy .* give model=FOLDER"):
        up.train("grpo", model=pair, out=tmp_path / "run", **small)


def test_a_model_that_was_changed_in_the_runs_folder_is_found(pair, small: dict, tmp_path: Path):
    from upslope.report.check_run import check_run

    run = up.train("grpo", model=pair, out=tmp_path / "run", **small, lora=2)
    assert all(finding.whole for finding in check_run(run.path))
    weights = run.path / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()  # the first checkpoint may be linked to it
    weights.write_bytes(data)
    assert [finding.what for finding in check_run(run.path) if not finding.whole] == ["model"]
    with pytest.raises(UserError, match=r"model.safetensors has changed since .*its digest was [0-9a-f]{16} and is [0-9a-f]{16}"):
        up.resume(run.path, steps=4)


@pytest.mark.parametrize("kind", ["gpt2", "qwen3", "gemma3_text", "mixtral", "deepseek_v3", "opt"])
def test_a_copy_computes_what_the_model_does(kind: str):
    model = small_model(small_config(kind, vocab_size=100))
    policy = given_model((model, tiny(0).tokenizer)).policy()
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        assert torch.equal(policy.model(ids).logits, model(ids).logits)
    shared = {value.data_ptr() for value in model.parameters()} & {value.data_ptr() for value in policy.model.parameters()}
    assert not shared
