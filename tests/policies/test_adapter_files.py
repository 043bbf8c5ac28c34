"""Adapters as files: peft, transformers and `--model` load the same model from them, and never put them on another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from upslope.errors import UserError
from upslope.policies import LanguageModel, load_language_model, load_tokenizer
from upslope.policies.adapter_files import Base, base_of, holds_adapters, holds_model
from upslope.policies.adapters import adapters
from upslope.policies.loading import config_in

pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")

IDS = torch.tensor([[1, 5, 9, 30, 12, 7]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.float()


def adapted(seed: int = 0) -> LanguageModel:
    """A policy whose adapters have an effect."""
    policy = load_language_model("tiny:layers=2,width=32", seed)
    policy.add_lora(4, seed=0)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return policy


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model in a folder of the user's."""
    load_language_model("tiny:layers=2,width=32", 0).save(tmp_path / "user" / "model")
    return tmp_path / "user" / "model"


@pytest.fixture
def saved(base: Path, tmp_path: Path) -> Path:
    """Adapters on it."""
    policy = adapted()
    policy.source = base
    policy.save(tmp_path / "saved")
    return tmp_path / "saved"


def test_everybody_loads_the_same_model(saved: Path, base: Path) -> None:
    from peft import AutoPeftModelForCausalLM, PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    names = {file.name for file in saved.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "base.json", "tokenizer.json", "tokenizer_config.json"}
    expected, without = logits(adapted().model), logits(load_language_model(str(base), 0).model)
    assert (expected - without).abs().max() > 0.1, "else nothing is compared"
    theirs = {
        "transformers": AutoModelForCausalLM.from_pretrained(saved),
        "peft": PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(saved)),
        "peft alone": AutoPeftModelForCausalLM.from_pretrained(str(saved)),
        "--model": load_language_model(str(saved), 0).model,
    }
    for who, model in theirs.items():
        torch.testing.assert_close(logits(model.eval()), expected, atol=1e-5, rtol=1e-5, msg=lambda text, who=who: f"{who}: {text}")
    assert AutoTokenizer.from_pretrained(saved).get_vocab() == load_tokenizer(str(saved)).get_vocab()
    assert config_in(saved).hidden_size == 32 and holds_model(saved) and holds_adapters(saved) and not holds_adapters(base)


def test_what_was_loaded_is_a_model_like_any_other(saved: Path, tmp_path: Path) -> None:
    policy = load_language_model(str(saved), 0)
    assert not policy.adapted and policy.source is None and all(value.requires_grad for value in policy.model.parameters())
    policy.save(tmp_path / "whole")
    assert torch.equal(logits(load_language_model(str(tmp_path / "whole"), 0).model), logits(policy.model))
    policy.add_lora(2, seed=1)
    assert {value.shape[0] for name, value in adapters(policy.model).items() if "lora_A" in name} == {2}


def test_a_base_in_no_folder_is_written_beside_its_adapters_and_moves_with_them(tmp_path: Path) -> None:
    policy = adapted()
    policy.save(tmp_path / "first" / "saved")
    assert Base.at(tmp_path / "first" / "saved" / "base").digests == base_of(tmp_path / "first" / "saved").digests
    (tmp_path / "first").rename(tmp_path / "second")
    found = load_language_model(str(tmp_path / "second" / "saved"), 0)
    torch.testing.assert_close(logits(found.model), logits(policy.model), atol=1e-5, rtol=1e-5)


def test_adapters_are_read_back_to_the_bit(saved: Path) -> None:
    mine, again = adapted(), load_language_model("tiny:layers=2,width=32", 0)
    again.add_lora(4, seed=7)
    again.load(saved)
    own, theirs = adapters(mine.model), adapters(again.model)
    assert own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)
    with pytest.raises(UserError, match="holds adapters alone, and 'tiny' has none to load"):
        load_language_model("tiny:layers=2,width=32", 0).load(saved)


def test_the_same_policy_gives_the_same_bytes(saved: Path, base: Path, tmp_path: Path) -> None:
    policy = adapted()
    policy.source = base
    policy.save(tmp_path / "again")
    for file in saved.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_a_base_that_has_changed_is_refused_with_both_digests(saved: Path, base: Path) -> None:
    old = Base.at(base).digests["model.safetensors"]
    load_language_model("tiny:layers=2,width=32", 1).save(base)
    new = Base.at(base).digests["model.safetensors"]
    with pytest.raises(
        UserError, match=f"model.safetensors has changed since the adapters in .*was {old} and is {new}.*Put the old"
    ):
        load_language_model(str(saved), 0)
    (base / "model.safetensors").rename(base / "kept.txt")
    with pytest.raises(UserError, match=r"model.safetensors of the model that the adapters in .* is gone"):
        load_language_model(str(saved), 0)


def test_a_base_that_is_nowhere_is_named(saved: Path, base: Path) -> None:
    base.rename(base.with_name("elsewhere"))
    with pytest.raises(UserError, match=rf"belong to the model '{base}', and there is no such folder here. Nothing is downloaded"):
        load_language_model(str(saved), 0)
    config = json.loads((saved / "adapter_config.json").read_text())
    for wrong, said in (
        ({"base_model_name_or_path": None}, "names no model"),
        ({"base_model_name_or_path": "Org/Model"}, "Org/Model"),
    ):
        (saved / "adapter_config.json").write_text(json.dumps(config | wrong))
        with pytest.raises(UserError, match=said):
            load_language_model(str(saved), 0)
    (saved / "adapter_config.json").write_text("{")
    with pytest.raises(UserError, match=r"adapter_config.json' cannot be read"):
        load_language_model(str(saved), 0)


def test_a_folder_that_peft_wrote_is_a_model_too(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With settings that are not ours, by a relative path and without a tokenizer, which is taken from the base."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(base.parent)
    model = AutoModelForCausalLM.from_pretrained("model")
    how = LoraConfig(
        r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], rank_pattern={"q_proj": 2}, use_rslora=True, use_dora=True,
        init_lora_weights=False, task_type="CAUSAL_LM",
    )  # fmt: skip
    theirs = get_peft_model(model, how).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    expected = logits(theirs)
    found = load_language_model(str(tmp_path / "theirs"), 0)
    torch.testing.assert_close(logits(found.model), expected, atol=1e-5, rtol=1e-5)
    assert len(found.tokenizer) == found.model.config.vocab_size


def test_adapters_whose_tensors_do_not_fit_are_refused(saved: Path, base: Path) -> None:
    load_language_model("tiny:layers=1,width=16", 0).save(base)
    table = json.loads((saved / "base.json").read_text())
    (saved / "base.json").write_text(json.dumps(table | {"digests": {}}))
    with pytest.raises(UserError, match=r"the adapters in .* cannot be put on the model in"):
        load_language_model(str(saved), 0)
