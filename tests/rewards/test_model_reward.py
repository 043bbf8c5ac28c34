"""``rm:RUN``: a run's reward model as a reward, what of it stands in ``run.toml``, and what is refused."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from batches import gradient, random_batch

import upslope as up
from upslope.errors import UserError
from upslope.methods import find
from upslope.objective.advantage.regularized import RegularizedReward
from upslope.objective.estimator import annotate
from upslope.policies.reward_model import RewardModel
from upslope.policies.reward_runs import RewardRun, is_reward_model, scoring_head
from upslope.rewards import RewardError, load_reward
from upslope.rewards.model_reward import ModelReward, reward_models, tells_no_right_answers
from upslope.rollout.ranking import evaluate_ranking
from upslope.tasks import load_task
from upslope.types import View

SMALL = dict(model="tiny:layers=1,width=32", steps=2, tasks_per_step=4, samples_per_task=4, eval_problems=8, warm_start=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Runs of a reward model, of one that compares pairs, and of a policy."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("bt-rm", "pair-rm", "grpo"):
        up.train(name, "reverse:length=3", out=folder / name, **SMALL)
    return folder


def table(run) -> dict:
    return tomllib.loads((run.path / "run.toml").read_text())


@pytest.mark.parametrize("name", ["bt-rm", "pair-rm"])
def test_a_reward_model_pays_in_any_method(folder, name, tmp_path):
    run = up.train("rloo", "reverse:length=3", reward=f"rm:{folder / name}", out=tmp_path / "run", **SMALL)
    model = RewardRun.parse(str(folder / name)).load()
    samples = [json.loads(line) for line in (run.path / "samples.jsonl").read_text().splitlines()]
    if name == "bt-rm":
        paid = model.scores([each["prompt"] for each in samples], [each["response"] for each in samples])
        assert [each["reward"] for each in samples] == pytest.approx(paid, abs=1e-4)
    else:
        assert run.metrics[0]["reward"] == pytest.approx(0, abs=1e-5)  # what one wins another loses
    (kept,) = table(run)["reward"]
    assert kept == f"rm:{folder / name}@{RewardRun.parse(str(folder / name)).current_digest()}"
    assert run.summary["score"] == "accuracy"  # the task itself knows what is right


def test_the_score_is_the_reward_where_nothing_tells_what_is_right(folder, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"say {number}:"}) + "\n" for number in range(20)))
    run = up.train("rloo", str(file), reward=f"rm:{folder / 'bt-rm'}", out=tmp_path / "run", max_tokens=4, **SMALL)
    last = run.evaluations[-1]
    assert run.summary["score"] == "reward" and last["score"] == last["reward"] and last["low"] <= last["score"] <= last["high"]
    assert tells_no_right_answers(load_reward(f"rm:{folder / 'bt-rm'}"))
    both = load_reward([f"rm:{folder / 'bt-rm'}*0.5", "exact"])
    assert not tells_no_right_answers(both) and len(list(reward_models(both))) == 1 and not tells_no_right_answers(None)


def test_all_answers_of_a_step_are_read_in_one_pass(folder, monkeypatch):
    reward, passes = ModelReward(f"rm:{folder / 'bt-rm'}"), []
    real = RewardModel._read
    monkeypatch.setattr(RewardModel, "_read", lambda self, *given: passes.append(len(given[1])) or real(self, *given))
    found = reward(["abc ->"] * 200 + ["de ->"] * 100, ["x"] * 100 + ["y"] * 200, [""] * 300)
    assert passes == [3] and len(set(found)) == 3  # and what is said twice is read once


def test_conversations_are_read_as_such(folder):
    reward = ModelReward(f"rm:{folder / 'bt-rm'}")
    told: list = []

    class Model:
        def scores(self, prompts, texts):
            told.append(prompts)
            return [0.0] * len(texts)

    reward.__dict__["model"] = Model()
    conversation = [{"role": "user", "content": "hello"}]
    reward(["hello", "bye"], ["a", "b"], ["", ""], messages=[conversation, None])
    assert told == [[conversation, "bye"]]


def test_a_run_goes_on_with_the_same_reward_model_or_not_at_all(folder, tmp_path):
    model = tmp_path / "rm"
    shutil.copytree(folder / "bt-rm", model)
    part = up.train("rloo", "reverse:length=3", reward=f"rm:{model}", out=tmp_path / "part", **SMALL)
    assert len(up.resume(part.path, steps=4).metrics) == 4
    model.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"cannot be found.*moved or deleted since it was first used: put it back"):
        up.resume(part.path, steps=5)
    (tmp_path / "elsewhere").rename(model)
    up.resume(model, steps=3)
    with pytest.raises(UserError, match=r"has changed since it was first used: its weights had the digest [0-9a-f]{12} and have"):
        up.resume(part.path, steps=5)


def test_what_is_no_reward_model_is_refused(folder, tmp_path, monkeypatch):
    for text, told in (
        (f"rm:{tmp_path / 'nothing'}", "there is no run in that folder. Train one: upslope train bt-rm"),
        (f"rm:{folder / 'grpo'}", "is a run of grpo, which scores no answers. Give one of bt-rm or pair-rm"),
        ("rm:", "names no run"),
    ):
        with pytest.raises(RewardError, match=told):
            up.train("rloo", "reverse:length=3", reward=text, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()
    assert is_reward_model(folder / "bt-rm") and not is_reward_model(folder / "grpo") and not is_reward_model(tmp_path)
    assert scoring_head({"method": {"models": {"value": {"part": "model.ValueFunction"}}}}) is None and scoring_head({}) is None
    monkeypatch.chdir(folder)
    assert RewardRun.parse("rm:bt-rm").kept() == RewardRun.parse(str(folder / "bt-rm")).kept()


def test_a_reward_model_answers_nothing(folder, tmp_path):
    from upslope.report.checkup import EvaluationRequest, Speaker, evaluate
    from upslope.serving.server import load_served

    path = str(folder / "bt-rm")
    with pytest.raises(UserError, match=r"upslope try .*scores answers and writes none"):
        Speaker(up.load(path))
    with pytest.raises(UserError, match=r"upslope serve .*scores answers and writes none"):
        load_served(path, "cpu", 1)
    with pytest.raises(UserError, match=r"--model .* trained a reward model.*--reward rm:"):
        up.train("grpo", "reverse:length=3", out=tmp_path / "run", **SMALL | {"model": path})
    with pytest.raises(UserError, match="--k goes with answers"):
        evaluate(up.load(path), EvaluationRequest(k=4))
    found = evaluate(up.load(path), EvaluationRequest(problems=30))
    ranked = evaluate_ranking(load_task("reverse:length=3"), RewardRun.parse(path).load(), problems=30)
    assert found["preferred"]["score"] == ranked.preferred and found["pairs"] == len(ranked.wins) == 30
    again = up.train("bt-rm", "reverse:length=3", out=tmp_path / "again", **SMALL | {"model": path})  # a trunk to go on from
    assert again.summary["score"] == "preferred"


def test_another_prompt_template_is_refused(folder, monkeypatch):
    from upslope.policies.tokenization import PromptFormat

    reward = ModelReward(f"rm:{folder / 'bt-rm'}")
    reward.check_format(PromptFormat("Be brief."))  # its tokenizer has no chat template: it reads the bare prompt
    monkeypatch.setattr(reward.model.policy.tokenizer, "chat_template", "{{ messages }}")
    reward.check_format(PromptFormat())
    with pytest.raises(
        RewardError, match=r"learned with --system none, and this run has 'Be brief.'.*Give the run the same --system"
    ):
        reward.check_format(PromptFormat("Be brief."))
    with pytest.raises(RewardError, match="--template none, and this run has enable_thinking=False"):
        reward.check_format(PromptFormat(template={"enable_thinking": False}))


def test_an_export_holds_the_head(folder, tmp_path):
    up.load(folder / "bt-rm").export(tmp_path / "out", dtype="float32")
    assert (tmp_path / "out" / "head-score.safetensors").is_file() and (tmp_path / "out" / "config.json").is_file()


def test_the_distance_inside_the_reward_of_rloo():
    """Rewards 1 and 0, log-ratios to the start 2 and -1 nats, β 0.1: 0.8 and 0.1; each less the other's, ±0.7."""
    rloo, batch = find("rloo"), random_batch(5)
    plain = rloo.derive(advantage=RegularizedReward(beta=0.0, leave_one_out=True))
    assert torch.equal(gradient(plain, batch).logp, gradient(rloo, batch).logp)
    two = random_batch(0, groups=1, samples=2, positions=1, ragged=False)
    old = torch.tensor([[-1.0], [-2.0]], dtype=torch.float64)
    start = View(old - torch.tensor([[2.0], [-1.0]], dtype=torch.float64))
    two = two.replace(reward=torch.tensor([1.0, 0.0], dtype=torch.float64), proximal=View(old), reference={"start": start})
    found = annotate(rloo.derive(advantage=RegularizedReward(beta=0.1, leave_one_out=True)), two)
    assert found.advantage.squeeze(1).tolist() == pytest.approx([0.7, -0.7])
