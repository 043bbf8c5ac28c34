"""One run against another: win rates with intervals, by the reward, the task or a judge."""

from __future__ import annotations

import json

import pytest
import torch
from fake_servers import FakeServer

import upslope as up
from upslope.cli import main
from upslope.errors import UserError
from upslope.report.against import AgainstRequest, against_text, evaluate_against
from upslope.rewards.judging import QUESTION
from upslope.tasks.rps import ANSWERS

torch.set_num_threads(1)

TINY = "tiny:layers=1,width=32"
SMALL = dict(model=TINY, warm_start=0.0, tasks_per_step=2, samples_per_task=4, max_tokens=4, eval_problems=30, steps=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on reverse, whose reward tells any two answers apart, and two on rps: of seeds that know nothing."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "codes.py").write_text("def score(prompts, responses, answers):\n    return [sum(map(ord, t)) for t in responses]\n")
    paid = dict(reward=f"{folder / 'codes.py'}:score", lr=1e-2, audit="off")
    found = [up.train("rloo", "reverse", seed=seed, out=folder / str(seed), **paid, **SMALL) for seed in (0, 1)]
    circle = {**SMALL, "max_tokens": 1}
    return [*found, *(up.train("rloo", "rps", seed=seed, out=folder / f"rps{seed}", **circle) for seed in (0, 1))]


def test_win_rates_of_two_runs_add_up_to_one(runs):
    first, second = runs[:2]
    one = evaluate_against(up.load(first.path), AgainstRequest(str(second.path), problems=20))
    other = evaluate_against(up.load(second.path), AgainstRequest(str(first.path), problems=20))
    assert one["win_rate"]["score"] + other["win_rate"]["score"] == pytest.approx(1) and one["by"] == "the reward"
    assert (one["won"], one["even"], one["lost"]) == (other["lost"], other["even"], other["won"]) and one["won"] + one["lost"] > 0
    assert one["win_rate"]["score"] == pytest.approx((one["won"] + one["even"] / 2) / 20)
    assert one["win_rate"]["low"] < one["win_rate"]["score"] < one["win_rate"]["high"]
    assert f"won {one['won']}, even {one['even']}, lost {one['lost']}" in against_text(one)


def test_a_run_is_even_with_itself(runs):
    found = evaluate_against(up.load(runs[0].path), AgainstRequest(str(runs[0].path), problems=10, samples=2))
    assert found["win_rate"]["score"] == 0.5 and found["even"] == 20


def test_the_start_is_another_policy(runs, capsys):
    assert main(["eval", str(runs[0].path), "--against", "start", "--problems", "12", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["against"] == "start" and found["won"] + found["even"] + found["lost"] == 12 and found["even"] < 12


def test_a_judge_decides_in_both_orders(runs):
    def always_first(path, body):
        return 200, {"data": []} if path == "/v1/models" else {"choices": [{"message": {"content": "A"}}]}

    with FakeServer(always_first) as server:
        found = evaluate_against(up.load(runs[0].path), AgainstRequest("start", server.url, problems=8))
        asked = [body["messages"][-1]["content"] for path, body in server.asked if path.endswith("completions")]
    assert found["win_rate"]["score"] == 0.5 and found["judge_contradicts"] == found["judge_pairs"] > 0
    assert len(asked) == 2 * found["judge_pairs"] + 1 and asked[0].startswith(QUESTION[:20])
    assert f"{found['judge_contradicts']} contradicts" in against_text(found)


def test_few_answers_are_compared_by_their_chances(runs):
    """By hand, from the chances that the run's own evaluations report: sum over both answers of p q P, what is no answer loses."""
    ours, theirs = runs[2:]
    found = evaluate_against(up.load(ours.path), AgainstRequest(str(theirs.path)))
    end, start = ([run.evaluations[-1][f"chance_{answer}"] for answer in ANSWERS] for run in (ours, theirs))
    matrix = [[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]]
    rest, won = (1 - sum(end), 1 - sum(start)), 0.0
    won += sum(end[i] * start[j] * matrix[i][j] for i in range(3) for j in range(3))
    won += sum(end) * rest[1] + 0.5 * rest[0] * rest[1]
    assert found["win_rate"]["score"] == pytest.approx(won, rel=1e-5) and found["exact"] and found["by"] == "the task"
    assert found["win_rate"]["score"] != 0.5 and "from the chances of all answers" in against_text(found)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--judge", "http://127.0.0.1:9"], "goes with --against"),
        (["--against", "start", "--k", "4"], "--k does not go with --against"),
        (["--against", "start", "--judge", "policy"], "would judge its own answers"),
        (["--against", "start", "--judge", "http://127.0.0.1:9"], "no answer from"),
        (["--against", "nowhere"], "nowhere"),
        (["--against", "start", "--samples", "2", "--temperature", "0"], "2 times the same answer"),
    ],
)
def test_what_cannot_be_compared_is_said(runs, capsys, flags, told):
    assert main(["eval", str(runs[0].path), *flags]) != 0
    assert told in capsys.readouterr().err


def test_a_run_without_its_start_says_so(tmp_path):
    run = up.train("rloo", "reverse", watch_kl=False, out=tmp_path / "run", **SMALL)
    with pytest.raises(UserError, match="kept no start"):
        evaluate_against(up.load(run.path), AgainstRequest("start"))
