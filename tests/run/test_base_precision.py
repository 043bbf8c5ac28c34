"""Runs whose base is in four bits: they repeat to the bit, and what they write is what was trained."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_models import rows_of
from transformers import AutoModelForCausalLM

import upslope as up
from upslope.cli import main
from upslope.errors import Remark, UserError
from upslope.policies import LanguageModel, load_language_model
from upslope.policies.adapter_files import base_of
from upslope.policies.forward.packed_matrix import packed_part
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime import seeding
from upslope.runtime.settings import Settings
from upslope.serving.server import load_served
from upslope.setting_up import text
from upslope.setting_up.text import apart_dtype
from upslope.types import Sampling, Trajectories

pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "reward": "regex:[a-m].*", "lora": 4, "base_precision": "nf4", "steps": 4, "tasks_per_step": 4, "samples_per_task": 4,
    "updates_per_step": 2, "warm_start": 0.0, "max_tokens": 4, "lr": 0.02, "warmup": 0, "eval_problems": 2, "checkpoint_every": 1,
    "keep_checkpoints": 4, "record": "none", "threads": 1, "audit": "off", "watch_kl": True,
}  # fmt: skip
TINY = "tiny:layers=2,width=32"


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"w{number}", "answer": "a"}) + "\n" for number in range(10)))
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the user's, in half precision as most are."""
    place, policy = tmp_path_factory.mktemp("model") / "base", load_language_model(TINY, 5)
    policy.save(place)
    policy.model.to(torch.bfloat16).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def run(problems: Path, tmp_path_factory: pytest.TempPathFactory) -> up.Run:
    """On a model that is in no folder."""
    return up.train("dr-grpo", str(problems), model=TINY, **SMALL, out=tmp_path_factory.mktemp("run") / "run")


def learned(run: up.Run) -> dict[str, torch.Tensor]:
    return load_file(run.folder.latest() / "adapter_model.safetensors")


def codes(policy: LanguageModel) -> list[torch.Tensor]:
    found = [packed_part(module) for module in policy.model.modules()]
    return [each for held in found if held is not None for each in (held.matrix.codes, held.matrix.scales, held.matrix.offsets)]


def probe(policy: LanguageModel) -> Trajectories:
    prompts = policy.encode_all(["w1", "reverse this"])
    done = TorchEngine(policy).generate(prompts, 3, Sampling(6), seeding.uniforms((6, 6), 1))
    return rows_of(policy, prompts, 3, done, 1.0)


def said(policy: LanguageModel, rows: Trajectories) -> torch.Tensor:
    with torch.no_grad():
        return policy.evaluate(rows).logp


# -- going on --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["nowhere", "in a folder"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(where: str, problems: Path, folder: Path, tmp_path: Path) -> None:
    """The base is quantised anew, to the same codes."""
    model = TINY if where == "nowhere" else str(folder)
    run = up.train("dr-grpo", str(problems), model=model, **SMALL, out=tmp_path / "run")
    first, theirs = codes(run.policy), learned(run)
    for checkpoint in run.folder.checkpoints()[-2:]:
        shutil.rmtree(checkpoint)
    (run.path / "summary.json").unlink()
    done = up.resume(run.path)
    assert done.policy.packed and done.table["settings"]["base_precision"] == "nf4"
    assert len(first) == 3 * 2 * 7 and all(
        torch.equal(mine, theirs) for mine, theirs in zip(codes(done.policy), first, strict=True)
    )
    mine = learned(done)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert max(float(value.abs().max()) for name, value in mine.items() if "lora_B" in name) > 0.02, "else nothing is compared"


def test_both_sides_say_the_same(run: up.Run) -> None:
    assert all(each["kl_start"] < 0.5 for each in run.metrics) and run.policy.packed and not run.policy.before_packing
    policy = up.load(run.path).policy
    assert policy.packed and policy.body is not None and TorchEngine(policy).probe(probe(policy)) < 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        assert main(["eval", str(run.path), "--k", "1", "--problems", "2"]) == 0


# -- what is written -------------------------------------------------------------------------------------------------------


def test_a_merged_model_is_the_policy(run: up.Run, tmp_path: Path) -> None:
    """Adapters are folded into what the codes stand for: in what is exported, served, begun with and found in a checkpoint."""
    policy = up.load(run.path).policy
    rows = probe(policy)
    expected = said(policy, rows)
    merged = up.load(run.path).export(tmp_path / "merged", merge=True, dtype="float32")["folder"]
    alone = up.load(run.path).export(tmp_path / "alone")["folder"]
    policy.save(tmp_path / "saved")
    policy.save_merged(tmp_path / "whole")
    for place in (merged, alone, str(tmp_path / "saved"), str(tmp_path / "whole"), str(run.path), str(run.folder.latest())):
        torch.testing.assert_close(said(load_language_model(place, 0), rows), expected, atol=2e-5, rtol=1e-5, msg=place)
    torch.testing.assert_close(said(load_served(str(run.path)), rows), expected, atol=2e-5, rtol=1e-5)
    without = json.loads((tmp_path / "alone" / "base.json").read_text())
    assert without.pop("precision") == "nf4" and base_of(tmp_path / "alone").precision == "nf4"
    (tmp_path / "alone" / "base.json").write_text(json.dumps(without))
    assert float((said(load_language_model(alone, 0), rows) - expected).abs().max()) > 1e-3, "else nothing is compared"
    model = AutoModelForCausalLM.from_pretrained(merged)
    assert all(bool(value.isfinite().all()) for value in model.parameters())


def test_the_base_in_the_run_is_the_model_as_it_was(run: up.Run, tmp_path: Path) -> None:
    kept, start = load_file(run.path / "model" / "model.safetensors"), load_language_model(TINY, 0).model.state_dict()
    assert all(torch.equal(value, start[name]) for name, value in kept.items()) and any("q_proj" in name for name in kept)
    table = json.loads((run.folder.latest() / "base.json").read_text())
    (tmp_path / "base.json").write_text(json.dumps(table | {"precision": "int3"}))
    shutil.copy(run.folder.latest() / "adapter_config.json", tmp_path)
    with pytest.raises(UserError, match=r"has the precision 'int3', which this version does not know\. Update upslope\."):
        base_of(tmp_path)


def test_another_run_begins_with_what_was_trained(run: up.Run, problems: Path, tmp_path: Path) -> None:
    rows = probe(up.load(run.path).policy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        again = up.train("dr-grpo", str(problems), model=str(run.path), **SMALL | {"steps": 1}, out=tmp_path / "again")
    own = said(load_language_model(str(again.path / "model"), 0), rows)
    torch.testing.assert_close(own, said(up.load(run.path).policy, rows), atol=2e-5, rtol=1e-5)
    assert len(up.resume(again.path, steps=2).metrics) == 2


# -- what goes together ----------------------------------------------------------------------------------------------------


def test_what_products_are_in() -> None:
    packed = Settings(device="cuda", lora=4, base_precision="nf4")
    assert (
        apart_dtype(packed) == torch.bfloat16 and apart_dtype(Settings(lora=4, base_precision="nf4", device="cpu")) == torch.float32
    )


@pytest.mark.parametrize(("changes", "told"), [
    ({"lora": 0}, r"--base-precision nf4 is for weights that stay .* all weights learn\. Add --lora 32, or leave it out\."),
    ({"plain": True}, r"--base-precision nf4 with --plain: `transformers` computes then, from whole weights\."),
    ({"shard": True, "learners": 2}, r"--base-precision nf4 with --shard: .* Leave one of them out\."),
    ({"engine": "http://127.0.0.1:9"}, r"--base-precision nf4 with --engine http.*: it samples with whole weights, .* one of them"),
    ({"base_precision": "int4"}, r"--base-precision is 'int4'; it must be one of auto, nf4\."),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], told: str, problems: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told):
        up.train("dr-grpo", str(problems), model=TINY, **SMALL | changes, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_float32_on_a_gpu_is_refused(problems: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "dr-grpo", str(problems), "--reward", "exact", "--model", TINY, "--lora", "4", "--base-precision", "nf4"]
    assert main([*words, "--precision", "float32", "--device", "cuda", "--memory", "24GB", "--dry-run"]) == 2
    assert "--base-precision nf4 with --precision float32: products as precise as that" in capsys.readouterr().err


def test_a_model_that_transformers_computes_is_refused_before_it_is_loaded(
    problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from model_families import small_config, small_model

    from upslope.policies.tiny import character_tokenizer
    from upslope.rollout import parity_check

    model = tmp_path / "gpt2"
    small_model(small_config("gpt2", vocab_size=128)).save_pretrained(model)
    character_tokenizer().save_pretrained(model)
    monkeypatch.setattr(parity_check, "load_checked", lambda *_: pytest.fail("it was loaded"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(
            UserError, match=r"--base-precision nf4: '.*gpt2' is computed by `transformers`, .* take a model that is"
        ):
            up.train("dr-grpo", str(problems), model=str(model), **SMALL, out=tmp_path / "run")


@pytest.mark.parametrize("word", ["load_in_4bit", "bnb_4bit_quant_type", "use_4bit"])
def test_what_others_call_it(word: str, problems: Path) -> None:
    with pytest.raises(UserError, match=f"no setting named '{word}'.* Did you mean 'base_precision'"):
        up.train("dr-grpo", str(problems), model=TINY, **{word: "nf4"})


def test_a_dry_run_tells_what_is_held(problems: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "dr-grpo", str(problems), "--reward", "exact", "--model", "tiny:layers=4,width=1024", "--lora", "4"]
    words += ["--device", "cuda", "--memory", "24GB", "--dry-run", "--json"]
    found = []
    for more in ([], ["--base-precision", "nf4"]):
        assert main([*words, *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["memory"]["kinds"])
    whole, packed = found
    assert "weights, 4 bits" not in whole and packed["weights, 4 bits"] < 0.27 * whole["weights, bfloat16"]
    assert packed["weights, 4 bits"] + packed["weights, bfloat16"] < 0.4 * whole["weights, bfloat16"]
    assert packed["a matrix unpacked"] > 0 and packed["gradients"] == whole["gradients"]


def test_a_run_as_on_a_gpu(folder: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded in bfloat16 on the host, with products in bfloat16: the codes of a run in float32, and both sides alike."""
    precise = up.train("dr-grpo", str(problems), model=str(folder), **SMALL | {"steps": 1}, out=tmp_path / "precise")
    monkeypatch.setattr(text, "apart_dtype", lambda settings: torch.bfloat16)
    run = up.train("dr-grpo", str(problems), model=str(folder), **SMALL | {"steps": 3}, out=tmp_path / "run")
    assert run.policy.compute_dtype == torch.bfloat16 and run.policy.packed
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(codes(run.policy), codes(precise.policy), strict=True))
    assert TorchEngine(run.policy).probe(probe(run.policy)) < 0.05
    before = learned(run)
    shutil.rmtree(run.folder.latest())
    (run.path / "summary.json").unlink()
    again = learned(up.resume(run.path))
    assert all(torch.equal(value, again[name]) and value.dtype == torch.float32 for name, value in before.items())
