"""Reward models as judges, and how they are judged themselves."""

from __future__ import annotations

import numpy as np
import pytest

import upslope as up
from upslope.errors import UserError
from upslope.policies.reward_runs import RewardRun
from upslope.report.against import AgainstRequest, evaluate_against
from upslope.rewards.preferences import Contest
from upslope.rollout.judges import make_judge
from upslope.rollout.ranking import RankingJudge, evaluate_ranking
from upslope.tasks import load_task
from upslope.tasks.text import Problem

SMALL = dict(model="tiny:layers=1,width=32", steps=2, tasks_per_step=4, samples_per_task=4, eval_problems=8, warm_start=0.0)


@pytest.fixture(scope="module", params=["bt-rm", "pair-rm"])
def path(request, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("runs") / request.param
    up.train(request.param, "reverse:length=3", out=folder, **SMALL)
    return str(folder)


def test_a_run_of_a_reward_model_judges_by_its_scores(path):
    judge = make_judge(path, 0.2)
    assert isinstance(judge, RankingJudge)
    contest = Contest(Problem("abc ->", "cba"), ("cba", "abc", "cba", "x"))
    (chances,), counts = judge.compare([contest])
    (logits,) = RewardRun.parse(path).load().logits([("abc ->", contest.texts)])
    assert np.allclose(chances, 1 / (1 + np.exp(-logits)), atol=1e-12) and np.array_equal(chances + chances.T, np.ones((4, 4)))
    assert counts == {"pairs": 3, "timeouts": 0, "unreadable": 0, "contradicts": 0}


def test_a_run_with_such_a_judge_keeps_no_verdicts(path, tmp_path):
    run = up.train("sppo", "reverse:length=3", judge=path, out=tmp_path / "run", **SMALL)
    assert run.metrics[0]["judge_pairs"] > 0 and run.metrics[0]["judge_unreadable"] == 0
    assert not (run.path / "verdicts.jsonl").exists()
    found = evaluate_against(run, AgainstRequest("start", judge=path, problems=5))
    assert found["by"] == path and 0 <= found["win_rate"]["score"] <= 1
    with pytest.raises(UserError, match="scores answers and writes none"):
        evaluate_against(run, AgainstRequest(path))


def test_the_share_of_pairs_that_are_ranked_right():
    class Lengths:
        """Prefers the longer text; knows no other difference."""

        def logits(self, contests):
            sizes = [np.array([len(text) for text in texts]) for _, texts in contests]
            return [each[:, None] - each[None, :] for each in sizes]

    task, sides = load_task("reverse:length=3"), ((("long", "longer"), ("no", "four")),)

    class Pairs(type(task)):
        def pair(self, problem):
            return sides[0]

    found = evaluate_ranking(Pairs(length=3), Lengths(), problems=5)  # type: ignore[arg-type]
    assert found.wins == [(1 + 0.5 + 1 + 1) / 4] * 5 and found.preferred == pytest.approx(0.875)
