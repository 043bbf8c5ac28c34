"""Who judges: servers and models are asked as they can be, and those that cannot are refused before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fake_servers import FakeServer, chosen, judging
from killing_judge import KillingJudge, killed_at, live, verdicts
from serving_client import loud

import upslope as up
from upslope.errors import UserError
from upslope.learners.policy_gradient import PolicyGradient
from upslope.policies import load_language_model
from upslope.rewards.judging import FAILURES, JudgeFailed, Question
from upslope.rewards.preferences import Contest
from upslope.rollout import judges
from upslope.rollout.judges import ModelJudge, ServerJudge, make_judge
from upslope.serving.server import Server
from upslope.tasks.text import Problem
from upslope.testing.runs import assert_same_run

torch.set_num_threads(1)

TINY = "tiny:layers=1,width=32"
SMALL = dict(model=TINY, warm_start=0.0, tasks_per_step=2, samples_per_task=4, max_tokens=4, eval_problems=4, steps=4)
WINS = {"data": "Compared(pays=True)"}


def only_text(path: str, body: dict) -> tuple[int, object]:
    if path == "/v1/models":
        return 200, {"data": []}
    if path != "/v1/completions":
        return 400, {"error": {"message": "this model has no chat template"}}
    return 200, {"choices": [{"text": chosen(body["prompt"])}]}


def questions(server: FakeServer) -> list[str]:
    """What a judge was asked, without the question that tries it."""
    asked = [body["messages"][-1]["content"] for path, body in server.asked if path.endswith("completions")]
    return [prompt for prompt in asked if prompt != judges.TRIAL]


@pytest.mark.parametrize("answer", [judging, only_text])
def test_a_server_is_asked_as_it_can_be(answer):
    with FakeServer(answer) as server:
        (chances,), counts = make_judge(server.url, 0.2).compare([Contest(Problem("x"), ("b", "a"))])
    assert chances.tolist() == [[0.5, 0], [1, 0.5]] and counts["pairs"] == 1 and not any(counts[kind] for kind in FAILURES)


def test_our_own_server_judges():
    """An untrained model says neither A nor B: every verdict is unreadable, and a run would end."""
    contests = [Contest(Problem(f"problem {number}"), ("yes", "no")) for number in range(20)]
    with Server(loud(), port=0) as server:
        (chances, *_), counts = make_judge(server.url, 1.0).compare(contests[:2])
        assert chances[0, 1] + chances[1, 0] == 1 and counts["unreadable"] == 2
        with pytest.raises(JudgeFailed, match=r"failed on 20 of the last 20 pairs \(20 unreadable\)"):
            make_judge(server.url, 0.2).compare(contests)


def test_questions_that_fail_are_told_apart(monkeypatch):
    """No answer in time, or one of a server that is overloaded, is missing; what is no answer at all cannot be read."""
    monkeypatch.setattr(judges, "TRIES", 1)

    def failing(path, body):
        if path == "/v1/models" or body["messages"][-1]["content"] == judges.TRIAL:
            return judging(path, body)
        return {"busy": (503, {}), "odd": (200, {"hello": 1})}[body["messages"][-1]["content"]]

    with FakeServer(failing) as server:
        judge = ServerJudge(server.url)
        assert judge([Question(Problem("x"), "busy"), Question(Problem("x"), "odd")]) == [None, ""]
    assert judge([Question(Problem("x"), "busy")]) == [None]  # it is gone


def test_a_key_that_is_refused_later_is_said():
    asked = []

    def refusing(path, body):
        asked.append(path)
        return judging(path, body) if len(asked) < 3 else (401, {"error": "who are you?"})

    with FakeServer(refusing) as server, pytest.raises(UserError, match="wants another key"):
        judge = ServerJudge(server.url)
        judge([Question(Problem("x"), "anything")])


def test_a_model_answers_with_its_likeliest_words():
    policy = load_language_model(TINY, 0)
    judge = ModelJudge(policy)
    asked = [Question(Problem("x"), text) for text in ("short", "a" * 600, "other")]
    said = judge(asked)
    assert said[1] == "" and said == judge(asked)
    assert said[0] == judge([asked[0]])[0]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("http://127.0.0.1:9", "--judge http://127.0.0.1:9: no answer from .*Is the server running"),
        ("runs/nothing-here", "no run, checkpoint or model in .*Give such a folder"),
        ("http://", "no address of a server"),
    ],
)
def test_a_judge_that_is_not_there_is_refused_before_the_first_step(tmp_path, spec, told):
    with pytest.raises(UserError, match=told):
        up.train("rloo", "reverse", knobs=WINS, judge=spec, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_a_run_in_an_environment_is_no_judge(tmp_path):
    run = up.train("ppo", "gym:CartPole-v1", steps=1, envs=1, horizon=16, eval_problems=1, out=tmp_path / "control")
    with pytest.raises(UserError, match=r"--judge .*control: a run in an environment.*Give a run of text"):
        make_judge(str(run.path), 0.2)


def test_a_method_that_compares_nothing_has_no_use_for_a_judge(tmp_path):
    with pytest.raises(UserError, match=r"--judge policy: rloo compares no answers\..*Compared\(pays=True\)"):
        up.train("rloo", "reverse", judge="policy", out=tmp_path / "run", **SMALL)


def test_a_file_without_answers_needs_a_judge_or_a_reward(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"say {number}"}) + "\n" for number in range(12)))
    with pytest.raises(UserError, match=r"has no \"answer\".*--judge"):
        up.train("rloo", str(file), knobs=WINS, out=tmp_path / "run", **SMALL)
    with FakeServer(judging) as server:
        run = up.train("rloo", str(file), knobs=WINS, judge=server.url, out=tmp_path / "judged", **{**SMALL, "steps": 1})
    assert run.metrics[0]["preference_gap"] == 0.5 and run.metrics[0]["judge_pairs"] > 2
    assert up.load(run.path).policy is not None  # to look at it, nobody is asked


def weights(run) -> torch.Tensor:
    return torch.cat([value.flatten() for value in run.policy.weights().values()])


def test_a_run_that_was_killed_asks_nothing_twice(tmp_path, monkeypatch):
    """Killed after the judge was asked in step 4, two steps behind the last checkpoint: it goes on to the same weights."""
    given = dict(knobs=WINS, checkpoint_every=2, seed=3, **SMALL)
    with FakeServer(judging) as server:
        whole = up.train("rloo", "reverse", judge=server.url, out=tmp_path / "whole", **given)
        asked = questions(server)
        assert len(asked) == len(set(asked)) > 20
        server.asked.clear()
        learn = PolicyGradient._learn_from

        def killed(self, method, rows, step, groups):
            if step == 4:
                raise KeyboardInterrupt
            return learn(self, method, rows, step, groups)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(PolicyGradient, "_learn_from", killed)
            up.train("rloo", "reverse", judge=server.url, out=tmp_path / "killed", **given)
        again = up.resume(tmp_path / "killed")
        assert sorted(questions(server)) == sorted(asked)
    assert torch.equal(weights(again), weights(whole))
    told = ["preference_gap", "judge_pairs", *(f"judge_{kind}" for kind in FAILURES)]
    assert [[step[name] for name in told] for step in again.metrics] == [[step[name] for name in told] for step in whole.metrics]


@pytest.mark.slow
def test_kill_dash_nine_while_a_judge_is_asked_counts_no_verdict_twice(tmp_path):
    """At its first question, halfway, and at its last; ``make torture`` kills at ten random ones."""
    with KillingJudge() as judge:
        assert live(judge, tmp_path / "whole", tmp_path / "log.txt") == 0, (tmp_path / "log.txt").read_text()
        asked = judge.questions
        assert asked == 2 * len(verdicts(tmp_path / "whole")) > 200
        killed_at(judge, tmp_path / "killed", tmp_path / "log.txt", (1, asked // 2, asked))
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert verdicts(tmp_path / "whole") == verdicts(tmp_path / "killed")


def test_a_run_whose_judge_goes_away_stops_with_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(judges, "TRIES", 1)
    busy = []

    def failing(path, body):
        busy.append(path)
        return judging(path, body) if len(busy) < 60 else (503, {})

    with FakeServer(failing) as server:
        with pytest.raises(JudgeFailed, match=r"timeouts.*upslope resume"):
            up.train("rloo", "reverse", knobs=WINS, judge=server.url, checkpoint_every=1, out=tmp_path / "run", **SMALL)
        server.answer = judging
        run = up.resume(tmp_path / "run")
    assert len(run.metrics) == 4 and all(step["judge_timeouts"] == 0 for step in run.metrics)


def test_the_policy_itself_judges_in_further_turns(tmp_path):
    run = up.train("rloo", "reverse", knobs=WINS, judge="policy", judge_failures=1.0, out=tmp_path / "run", **{**SMALL, "steps": 2})
    for step in run.metrics:
        assert step["judge_pairs"] > 0 and step["further_samples"] == 2 * step["judge_pairs"]
    assert not Path(run.path, "verdicts.jsonl").exists()


def test_a_checkpoint_judges_and_is_found_from_anywhere(tmp_path, monkeypatch):
    first = up.train("rloo", "reverse", out=tmp_path / "first", **{**SMALL, "steps": 1})
    monkeypatch.chdir(tmp_path)
    given = dict(knobs=WINS, judge_failures=1.0, **{**SMALL, "steps": 1})
    run = up.train("rloo", "reverse", judge="first", out=tmp_path / "judged", **given)
    assert run.table["settings"]["judge"] == str(tmp_path / "first") and run.metrics[0]["judge_unreadable"] > 0
    lines = Path(run.path, "verdicts.jsonl").read_text().splitlines()
    assert len(lines) == run.metrics[0]["judge_pairs"]
    step = sorted((first.path / "checkpoints").glob("step-*"))[-1]
    assert make_judge(str(step), 0.2).compare([Contest(Problem("x"), ("a", "b"))])[1]["pairs"] == 1
