"""Runs with adapters: small checkpoints, a base that is known by its digest, and runs of the older layout."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pinned_build import build
from places import FIXTURES
from safetensors.torch import load_file
from test_pinned_runs import fingerprint

import upslope as up
from upslope.cli import main
from upslope.errors import Remark, UserError
from upslope.policies import load_language_model
from upslope.policies.adapter_files import Base, base_of
from upslope.policies.adapters import adapters
from upslope.report.check_run import check_run
from upslope.serving.server import load_served

torch.set_num_threads(1)

OLD_RUN = FIXTURES / "run-adapters-merged"
"""Stopped after its third step of six, each checkpoint with ``adapters.safetensors`` beside the merged weights."""
IDS = torch.tensor([[1, 5, 9, 30, 12, 7]])
SMALL: dict[str, Any] = {
    "reward": "regex:[a-m].*", "lora": 2, "steps": 3, "tasks_per_step": 4, "samples_per_task": 4, "warm_start": 0.0,
    "max_tokens": 4, "lr": 0.02, "warmup": 0, "eval_problems": 4, "checkpoint_every": 1, "keep_checkpoints": 3, "record": "none",
    "threads": 1, "audit": "off",
}  # fmt: skip
TINY = "tiny:layers=1,width=16"


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"w{number}", "answer": "a"}) + "\n" for number in range(10)))
    return file


@pytest.fixture(scope="module")
def run(problems: Path, tmp_path_factory: pytest.TempPathFactory) -> up.Run:
    """On a model that is in no folder."""
    return up.train("grpo", str(problems), model=TINY, **SMALL, out=tmp_path_factory.mktemp("run") / "run")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    load_language_model(TINY, 5).save(tmp_path / "base")
    return tmp_path / "base"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.float()


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.unlink()  # it may be linked to others
    file.write_bytes(data)


def evaluated(path: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        return main(["eval", str(path), "--k", "1", "--problems", "2"]) == 0


def learned(run: up.Run) -> dict[str, torch.Tensor]:
    return load_file(run.folder.latest() / "adapter_model.safetensors")


def test_checkpoints_hold_no_weights_but_the_adapters(run: up.Run) -> None:
    latest, own = run.folder.latest(), run.path / "model"
    names = {file.name for file in latest.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "base.json", "tokenizer.json", "learner.safetensors"} <= names
    assert not names & {"model.safetensors", "config.json", "adapters.safetensors"}
    assert {file.name for file in run.folder.start.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert json.loads((latest / "adapter_config.json").read_text())["base_model_name_or_path"] == str(own)
    assert run.table["model"] == TINY
    assert run.table["base"] == {f"{{run}}/model/{name}": digest for name, digest in Base.at(own).digests.items()}
    assert all(finding.whole for finding in check_run(run.path))


def test_everybody_loads_a_checkpoint(run: up.Run) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    folder, expected = run.folder.latest(), logits(up.load(run.path).policy.model)
    assert (expected - logits(load_language_model(TINY, 0).model)).abs().max() > 1e-3, "else nothing is compared"
    theirs = (AutoModelForCausalLM.from_pretrained(folder), AutoPeftModelForCausalLM.from_pretrained(str(folder)))
    ours = (load_language_model(str(folder), 0), load_language_model(str(run.path), 0), load_served(str(run.path)))
    for model in (*theirs, *(policy.model for policy in ours)):
        torch.testing.assert_close(logits(model.eval()), expected, atol=1e-5, rtol=1e-5)


def test_a_policy_that_is_saved_elsewhere_knows_its_base_and_checkpoints_still_do(run: up.Run, tmp_path: Path) -> None:
    run.policy.save(tmp_path / "mine")
    assert json.loads((tmp_path / "mine" / "base.json").read_text())["within"] == ""
    assert run.policy.base is not None and run.policy.base.within == "../../model"
    expected = logits(up.load(run.path).policy.model)
    torch.testing.assert_close(logits(load_language_model(str(tmp_path / "mine"), 0).model), expected, atol=1e-5, rtol=1e-5)


def test_a_run_is_moved_with_its_base_and_goes_on(problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = up.train("grpo", str(problems), model=TINY, **SMALL | {"steps": 4}, out=tmp_path / "whole")
    part = up.train("grpo", str(problems), model=TINY, **SMALL | {"steps": 4}, out=tmp_path / "part")
    for folder in part.folder.checkpoints()[-2:]:
        shutil.rmtree(folder)
    (part.path / "summary.json").unlink()
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    part.path.rename(moved)
    assert main(["eval", str(moved), "--k", "1", "--json"]) == 0, capsys.readouterr().err
    assert load_language_model(str(moved), 0).parameter_count() == load_language_model(TINY, 0).parameter_count()
    done = up.resume(moved)
    mine, theirs = learned(done), learned(whole)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert base_of(done.folder.latest()).folder == moved / "model", "new checkpoints name the new place"
    assert json.loads((done.folder.latest() / "adapter_config.json").read_text())["base_model_name_or_path"] == str(moved / "model")


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_base_that_has_changed_is_refused(where: str, problems: Path, base: Path, tmp_path: Path) -> None:
    run = up.train("grpo", str(problems), model=str(base) if where == "outside" else TINY, **SMALL, out=tmp_path / "run")
    kept = base if where == "outside" else run.path / "model"
    assert (run.path / "model").exists() == (where == "inside")
    file = kept / "model.safetensors"
    old = Base.at(kept).digests["model.safetensors"]
    flip(file)
    new = Base.at(kept).digests["model.safetensors"]
    said = rf"{file} has changed since the adapters .* trained on it: its digest was {old} and is {new}\. Put the old model back"
    with pytest.raises(UserError, match=said):
        _ = up.load(run.path).policy
    with pytest.raises(UserError, match=said):
        up.resume(run.path, steps=4)
    with pytest.raises(UserError, match=said):
        load_language_model(str(run.path), 0)
    with pytest.raises(UserError, match=said):
        run.export(tmp_path / "out", merge=True)


def test_another_run_begins_with_what_adapters_learned(run: up.Run, problems: Path, tmp_path: Path) -> None:
    """With all weights, or with new adapters on them: then the merged model is the base, which only the new run has."""
    expected = logits(up.load(run.path).policy.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        whole = up.train("grpo", str(problems), model=str(run.path), **SMALL | {"lora": 0, "steps": 1}, out=tmp_path / "whole")
        again = up.train("grpo", str(problems), model=str(run.path), **SMALL | {"steps": 1}, out=tmp_path / "again")
    torch.testing.assert_close(logits(load_language_model(str(whole.folder.start), 0).model), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(load_language_model(str(again.path / "model"), 0).model), expected, atol=1e-5, rtol=1e-5)
    for found in (whole, again):
        assert evaluated(found.path)


def test_what_is_in_a_cache_or_another_run_is_kept_too_and_linked(
    problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSLOPE_CACHE", str(tmp_path / "cache"))
    cached = tmp_path / "cache" / "smollm2-135m-instruct"
    load_language_model(TINY, 3).save(cached)
    first = up.train("grpo", str(problems), model=TINY, **SMALL | {"lora": 0, "steps": 1}, out=tmp_path / "first")
    for number, (model, source) in enumerate((("smollm2", cached), (str(first.path), first.folder.latest()))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Remark)
            run = up.train("grpo", str(problems), model=model, **SMALL | {"steps": 1}, out=tmp_path / f"run-{number}")
        assert (run.path / "model" / "model.safetensors").samefile(source / "model.safetensors")
        shutil.rmtree(source)
        assert evaluated(run.path) and len(up.resume(run.path, steps=2).metrics) == 2


def test_a_model_given_as_an_object_is_the_base_in_the_run(problems: Path, tmp_path: Path) -> None:
    run = up.train("grpo", str(problems), model=load_language_model(TINY, 4), **SMALL, out=tmp_path / "run")
    assert base_of(run.folder.latest()).folder == run.path / "model" and set(run.table["base"]) == {
        "{run}/model/config.json", "{run}/model/model.safetensors",
    }  # fmt: skip
    expected = logits(up.load(run.path).policy.model)
    torch.testing.assert_close(logits(load_language_model(str(run.path), 0).model), expected, atol=1e-5, rtol=1e-5)
    exported = run.export(tmp_path / "alone")["folder"]
    shutil.rmtree(run.path)
    torch.testing.assert_close(logits(load_language_model(exported, 0).model), expected, atol=1e-5, rtol=1e-5)


# -- runs of the older layout ----------------------------------------------------------------------------------------------


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD_RUN, tmp_path / "runs" / "old"))


def test_an_old_run_resumes_to_the_weights_it_always_had(old_run: Path) -> None:
    """And so a run on a CPU computes what it did when each checkpoint had merged weights: its end is that of then, to the bit."""
    done = up.resume(old_run)
    assert [each["step"] for each in done.metrics] == [1, 2, 3, 4, 5, 6]
    weights = {name: value.clone() for name, value in adapters(done.policy.model).items()}
    expected, pinned = load_file(OLD_RUN.with_suffix(".safetensors")), json.loads(OLD_RUN.with_suffix(".json").read_text())
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)
    if pinned["build"] == build():
        assert fingerprint(weights) == pinned["weights"] == fingerprint(expected)
    assert (done.folder.latest() / "adapter_config.json").is_file() and (old_run / "model" / "model.safetensors").is_file()
    assert all(finding.whole for finding in check_run(old_run))
    assert evaluated(old_run) and len(up.resume(old_run, steps=7).metrics) == 7


def test_an_old_run_is_evaluated_served_exported_and_begun_with(old_run: Path, tmp_path: Path) -> None:
    expected = logits(up.load(old_run).policy.model)
    assert evaluated(old_run)
    torch.testing.assert_close(logits(load_served(str(old_run)).model), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(load_language_model(str(old_run), 0).model), expected, atol=1e-5, rtol=1e-5)
    merged = up.load(old_run).export(tmp_path / "merged", merge=True, dtype="float32")["folder"]
    alone = up.load(old_run).export(tmp_path / "alone")["folder"]
    for folder in (merged, alone):
        torch.testing.assert_close(logits(load_language_model(folder, 0).model), expected, atol=1e-5, rtol=1e-5)


def test_a_new_run_learns_what_the_old_one_did(old_run: Path, tmp_path: Path) -> None:
    """From the first step on: warm start, sampling, learning and Adam on a CPU have the bits they had."""
    settings = {**SMALL, "steps": 6, "checkpoint_every": 3, "keep_checkpoints": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        run = up.train("grpo", str(old_run / "data" / "p.jsonl"), model=TINY, **settings, out=tmp_path / "run")
    weights, expected = adapters(run.policy.model), load_file(OLD_RUN.with_suffix(".safetensors"))
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)
    pinned = json.loads(OLD_RUN.with_suffix(".json").read_text())
    if pinned["build"] == build():
        assert fingerprint({name: value.clone() for name, value in weights.items()}) == pinned["weights"]
