"""Category-aware continued pre-training, then supervised fine-tuning."""

from __future__ import annotations

import json

import pytest
import torch
from batches import gradient, random_batch
from oracles import llama_loss
from rollout_calls import collect
from small_models import policy_of

import upslope as up
from upslope.errors import UserError
from upslope.methods import compose, find
from upslope.objective.estimator import annotate, begin_update, check, decision_losses
from upslope.objective.stages import Stage
from upslope.rollout.categories import FromCategories
from upslope.rollout.given import FromAnswers
from upslope.tasks.text import Problem
from upslope.testing.runs import assert_same_run
from upslope.types import Sampling

CAP, SFT = find("cap-cpt"), find("sft")
SMALL = {"model": "tiny:layers=1,width=32", "steps": 4, "tasks_per_step": 8, "warm_start": 0.0, "eval_problems": 4, "lr": 3e-3,
         "warmup": 0}  # fmt: skip


@pytest.fixture
def rules(tmp_path) -> str:
    """Rules of two categories, one far rarer, with questions to them."""
    lines = [
        {
            "prompt": f"{i}?",
            "answer": str(i % 10),
            "category": "odd" if i % 9 == 8 else "even",
            "documents": [f"rule {i}: {i % 10}"],
        }
        for i in range(40)
    ]
    (tmp_path / "rules.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(tmp_path / "rules.jsonl")


@pytest.mark.checks("identity", "cap-cpt")
def test_without_its_stage_it_is_sft(rules, tmp_path):
    bare = CAP.derive(stages=())
    assert bare.diff(SFT) == {}
    batch = random_batch(seed=3)
    assert torch.equal(gradient(CAP, batch).logp, gradient(SFT, batch).logp), "the stage is no part of the method's own loss"
    mine = up.train(bare.derive(name="bare"), rules, reward="exact", out=tmp_path / "mine", **SMALL)
    theirs = up.train("sft", rules, reward="exact", out=tmp_path / "sft", **SMALL)
    assert_same_run(mine.path, theirs.path)


@pytest.mark.checks("oracle", "cap-cpt", by="transformers")
def test_the_loss_of_its_stage_is_that_of_language_modelling():
    policy = policy_of("llama")
    stage = CAP.stages[0].as_method(CAP)
    pool = [Problem("a", "", {"documents": ["abca"], "category": "x"}), Problem("b", "", {"documents": ["cab"], "category": "y"})]

    class Pool:
        name = "pool"

        def sample(self, count, split, rng):
            return [pool[i % 2] for i in range(count)]

    assert stage.rollout is not None
    rollout = stage.rollout.build(Pool(), policy, tasks=2, samples=1, sampling=Sampling(max_tokens=4), seed=0)
    rows = begin_update(stage, annotate(stage, collect(rollout, 1)))
    losses, _ = decision_losses(stage, rows.replace(current=policy.evaluate(rows)))
    texts = [note["response"] for note in rows.info]
    begin, stop = policy.tokenizer.bos_token_id, min(policy.stop_ids)
    spelled = [[*policy.tokenizer(text, add_special_tokens=False).input_ids, stop] for text in ("abca", "cab")]
    theirs = llama_loss(policy.model, [[begin], [begin]], spelled)
    assert sorted(len(text) for text in texts) == [3, 4]
    assert float(losses.sum()) == pytest.approx(float(theirs), abs=1e-6)


def test_it_reads_documents_in_the_first_half_and_imitates_answers_in_the_second(rules, tmp_path):
    run = up.train("cap-cpt", rules, reward="exact", out=tmp_path / "run", **SMALL, samples_logged=8)
    assert [record["stage"] for record in run.metrics] == [1, 1, 2, 2]
    samples = run.folder.read("samples.jsonl")
    assert all(each["response"].startswith("rule ") and not each["prompt"] for each in samples if each["step"] <= 2)
    assert all(each["prompt"].endswith("?") and each["response"] == each["answer"] for each in samples if each["step"] > 2)
    assert run.metrics[0]["loss"] > run.metrics[1]["loss"]


def test_before_rl_both_of_its_phases_are_stages():
    both = compose(["cap-cpt", "poro"])
    assert [(each.name, each.share, type(each.rollout)) for each in both.stages] == [
        ("cpt", 0.25, FromCategories),
        ("cap-cpt", 0.25, FromAnswers),
    ]
    assert both.without("stages").diff(find("poro")) == {} and both.parent == "poro"
    check(both)


def test_cap_cpt_and_poro_in_one_run(rules, tmp_path):
    run = up.train("cap-cpt+poro", rules, reward="exact", out=tmp_path / "run", **SMALL, samples_per_task=2)
    assert [record["stage"] for record in run.metrics] == [1, 2, 3, 3]
    assert "reward" not in run.metrics[1] and "reward" in run.metrics[2]


def test_a_task_without_documents_is_refused_before_the_run(tmp_path):
    with pytest.raises(UserError, match=r"documents"):
        up.train("cap-cpt", "reverse:length=2", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_supervised_methods_come_before_any_other_as_stages():
    first = compose(["sft", "grpo"])
    assert first.stages == (Stage.of_method(SFT, 0.5),) and first.without("stages").diff(find("grpo")) == {}
    three = compose(["sft", "dapo", "high-entropy"])
    assert three.without("stages").diff(compose(["dapo", "high-entropy"])) == {} and three.name == "sft+dapo+high-entropy"
    with pytest.raises(UserError, match=r"To train it before: sft\+grpo"):
        compose(["grpo", "sft"])
