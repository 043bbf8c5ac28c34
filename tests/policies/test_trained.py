"""A run as the model of another."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import upslope as up
from upslope.errors import Remark, UserError
from upslope.policies import load_language_model
from upslope.policies.trained import trained_weights, underlying_model

SMALL = {
    "task": "reverse:length=2", "tasks_per_step": 2, "samples_per_task": 4, "eval_problems": 4, "lr": 1e-2, "warmup": 0,
    "record": "none", "eval_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    out = tmp_path_factory.mktemp("first") / "run"
    return up.train("grpo", **SMALL, model="tiny:layers=1,width=16", warm_start=0.0, keep="best:score", steps=2, out=out)


def test_another_run_begins_with_its_best_weights_and_the_defaults_of_its_model(first, tmp_path):
    with pytest.warns(Remark, match=r"its best checkpoint is taken, of step 0 \(score 0\), weights only"):
        second = up.train("grpo", **{**SMALL, "lr": None}, model=str(first.path), steps=1, out=tmp_path / "run")
    best = load_file(first.folder.best / "model.safetensors")
    start = load_file(second.path / "checkpoints" / "start" / "model.safetensors")
    assert all(torch.equal(best[name], start[name]) for name in best)
    assert second.table["settings"]["lr"] == 2e-4 and second.table["settings"]["warm_start"] == 0.0
    assert underlying_model(str(second.path)) == "tiny:layers=1,width=16"
    assert load_language_model(str(second.path), 0).name == "run"


def test_without_a_best_one_the_last_is_taken(first, tmp_path):
    run = up.train("grpo", **SMALL, model="tiny:layers=1,width=16", warm_start=0.0, steps=1, out=tmp_path / "plain")
    assert trained_weights(str(run.path)).name == "step-000001"


def test_a_controller_is_no_model_of_text(tmp_path):
    run = up.train("ppo", "gym:CartPole-v1", steps=1, envs=1, horizon=8, passes=1, eval_problems=1, out=tmp_path / "run")
    with pytest.raises(UserError, match="is a run in an environment"):
        up.train("grpo", **SMALL, model=str(run.path), steps=1, out=tmp_path / "text")
