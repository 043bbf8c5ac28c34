"""Runs whose learners hold a part of the policy each: they end where others end, are saved whole, and survive a dead learner."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from run.test_learners import POISON, Looks, alive, trained

import upslope as up
from upslope.errors import Remark, UserError
from upslope.learners.nonfinite import NonFinite
from upslope.policies import load_language_model
from upslope.policies.sharded import check_can_be_sharded
from upslope.runtime.settings import Settings
from upslope.runtime.team_lead import LearnerLost
from upslope.setting_up.where import check_shard
from upslope.testing.runs import Breaks, Crash, assert_same_run

SHARD = {"learners": 2, "shard": True}


def close(one: up.Run, other: up.Run) -> None:
    """The same weights to rounding."""
    weights = other.policy.weights()
    for name, tensor in one.policy.weights().items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_learner_is_killed_and_the_run_resumes_to_where_one_ends_alone(tmp_path):
    out = tmp_path / "run"
    looks = Looks(out, at=3)
    with (
        pytest.raises(LearnerLost, match=r"learner 1 was killed \(SIGKILL\).*upslope resume"),
        pytest.warns(Remark, match="--shard"),
    ):
        trained(out, **SHARD, callbacks=[looks])
    assert looks.pids and not alive(looks.pids[1]) and not (out / "summary.json").exists()
    assert "shard = true" in (out / "run.toml").read_text()
    run, alone = up.resume(out), trained(tmp_path / "alone", reuse="off")
    close(run, alone)
    assert [each["grad_norm"] for each in run.metrics] == pytest.approx([each["grad_norm"] for each in alone.metrics], rel=1e-4)
    for name in ("model.safetensors", "learner.safetensors"):
        sizes = [(path / "checkpoints" / "step-000004" / name).stat().st_size for path in (out, alone.path)]
        assert sizes[0] == sizes[1], f"{name} is not whole"


def test_what_cannot_be_divided_is_refused(tmp_path):
    grpo, td3 = up.method("grpo"), up.method("td3")
    cases = [
        (grpo, {"shard": True}, "--shard divides .* and there is one. Give --learners 2"),
        (grpo, SHARD | {"lora": 4}, "--shard with --lora 4: .*Leave one of them out"),
        (grpo, SHARD | {"adam_states": "bfloat16"}, "--shard with --adam-states bfloat16: .*Leave --adam-states out"),
        (grpo, SHARD | {"adam_states": "8bit"}, "--shard with --adam-states 8bit: .*Leave --adam-states out"),
        (grpo, SHARD | {"recompute": "all"}, "--shard with --recompute all: .*--slice-tokens"),
        (td3, SHARD, "td3 learns by the actor-critic learner, in one process"),
    ]
    for method, changes, told in cases:
        with pytest.raises(UserError, match=told):
            check_shard(method, Settings(**changes))
    with pytest.raises(UserError, match="--shard divides"):
        trained(tmp_path / "run", shard=True)
    with pytest.raises(UserError, match="--shard goes with text; gym:CartPole-v1 is an environment"):
        up.train("ppo", "gym:CartPole-v1", shard=True, out=tmp_path / "control")
    policy = load_language_model("tiny:layers=1,width=16", 0)
    check_can_be_sharded(policy)
    policy.model.scale = torch.nn.Parameter(torch.tensor(1.0))
    with pytest.raises(UserError, match=r"scale of 'tiny.*' is a single number"):
        check_can_be_sharded(policy)
    policy.model.model.layers = policy.model.model.layers[0]
    with pytest.raises(UserError, match="has no list of layers"):
        check_can_be_sharded(policy)


# -- minutes -----------------------------------------------------------------------------------------------------------------


def resettled(run: Path, **changes: object) -> None:
    """Another plan for a run that goes on, as no command gives it."""
    text = (run / "run.toml").read_text()
    for name, value in changes.items():
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {str(value).lower()}", text, flags=re.MULTILINE)
        assert count == 1
    (run / "run.toml").write_text(text)


@pytest.mark.torture
@pytest.mark.parametrize("method", ["grpo", "bapo", "remix", "tp-llama", "dpo", "ppo"])
def test_resuming_equals_never_stopping_and_parts_equal_the_whole(tmp_path, method):
    more = SHARD | {"watch_kl": True, "adam_eps": 1e-3}
    undisturbed = trained(tmp_path / "undisturbed", method, **more)
    with pytest.raises(Crash):
        trained(tmp_path / "cut", method, **more, watcher=Breaks(3))
    up.resume(tmp_path / "cut")
    assert_same_run(undisturbed.path, tmp_path / "cut")
    whole = trained(tmp_path / "whole", method, **more | {"shard": False})
    close(undisturbed, whole)
    for one, other in zip(undisturbed.metrics, whole.metrics, strict=True):
        assert one.keys() == other.keys()


@pytest.mark.torture
@pytest.mark.parametrize("then", [{"shard": False}, {"shard": False, "learners": 1}, {"learners": 3}], ids=str)
def test_a_checkpoint_is_whole_whoever_goes_on_from_it(tmp_path, then):
    whole = trained(tmp_path / "whole", **SHARD)
    with pytest.raises(Crash):
        trained(tmp_path / "cut", **SHARD, watcher=Breaks(3))
    resettled(tmp_path / "cut", **then)
    close(up.resume(tmp_path / "cut"), whole)


@pytest.mark.torture
def test_parts_go_on_from_a_checkpoint_of_whole_learners(tmp_path):
    whole = trained(tmp_path / "whole", learners=2)
    with pytest.raises(Crash):
        trained(tmp_path / "cut", learners=2, watcher=Breaks(3))
    resettled(tmp_path / "cut", shard=True)
    close(up.resume(tmp_path / "cut"), whole)


@pytest.mark.torture
def test_who_samples_makes_no_difference(tmp_path):
    here = trained(tmp_path / "here", **SHARD)
    there = trained(tmp_path / "there", **SHARD, workers=1)
    weights = there.policy.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in here.policy.weights().items())


@pytest.mark.torture
def test_a_nan_of_one_learner_is_what_it_is_alone(tmp_path):
    (tmp_path / "poisoned.py").write_text(POISON)
    said = []
    for name, changes in {"alone": {}, "parts": SHARD}.items():
        out = tmp_path / name
        with pytest.raises(NonFinite) as told:
            trained(out, str(tmp_path / "poisoned.py"), steps=10, **changes, reuse="off")
        said.append(str(told.value).replace(str(out), "RUN"))
        assert [record["skipped_updates"] for record in up.load(out).metrics] == [0, 1, 0, 1, 1, 1, 1]
        assert len(list((out / "nonfinite").iterdir())) == 3
    assert said[0] == said[1]
