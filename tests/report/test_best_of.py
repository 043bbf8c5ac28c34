"""The best of several answers as a reward model ranks them."""

from __future__ import annotations

import json

import pytest

import upslope as up
from upslope.cli import main
from upslope.errors import UserError
from upslope.report.best_of import BestOfRequest, best_of_text, evaluate_best_of

SMALL = dict(model="tiny:layers=1,width=64", steps=2, tasks_per_step=4, eval_problems=20)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A policy that knows a little, and a reward model."""
    folder = tmp_path_factory.mktemp("runs")
    up.train("grpo", "reverse:length=2", warm_start=0.5, out=folder / "grpo", **SMALL)
    up.train("bt-rm", "reverse:length=2", warm_start=0.0, out=folder / "rm", **SMALL)
    (folder / "right.py").write_text(
        "def right(prompts, responses, answers):\n    return [r == a for r, a in zip(responses, answers)]\n"
    )
    (folder / "none.py").write_text("def same(prompts, responses, answers):\n    return [1.0] * len(responses)\n")
    return folder


def test_who_knows_what_is_right_finds_it_and_who_knows_nothing_takes_any(runs):
    run = up.load(runs / "grpo")
    known = evaluate_best_of(run, BestOfRequest(6, f"{runs / 'right.py'}:right"))
    assert known["best of 6"] == known["pass@6"] and known["best of 6"]["score"] > known["pass@1"]["score"] > 0
    blind = evaluate_best_of(run, BestOfRequest(6, f"{runs / 'none.py'}:same"))
    assert blind["best of 6"]["score"] == pytest.approx(blind["pass@1"]["score"])
    assert known["pass@1"] == blind["pass@1"] and known["problems"] == blind["problems"]  # the same answers were ranked


def test_a_reward_model_ranks(runs, capsys):
    run, path = up.load(runs / "grpo"), str(runs / "rm")
    found = evaluate_best_of(run, BestOfRequest(4, f"rm:{path}", problems=10))
    assert found["by"] == f"rm:{path}" and found["samples"] == 4
    for name in ("pass@1", "best of 4", "pass@4"):
        assert found[name]["low"] <= found[name]["score"] <= found[name]["high"]
    assert found["best of 4"]["score"] <= found["pass@4"]["score"]
    assert f"the one that rm:{path} ranks first" in best_of_text(found)
    assert main(["eval", str(runs / "grpo"), "--best-of", "4", "--by", f"rm:{path}", "--problems", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--best-of", "4"], "--best-of goes with --by rm:RUN2"),
        (["--by", "exact"], "--by goes with --best-of 8"),
        (["--best-of", "1", "--by", "exact"], "nothing to rank"),
        (["--best-of", "4", "--by", "exact", "--temperature", "0"], "4 times the same answer"),
        (["--best-of", "4", "--by", "exact", "--k", "2"], "--k does not go with --best-of"),
        (["--best-of", "4", "--by", "rm:nowhere"], "there is no run in that folder"),
        (["--best-of", "4", "--by", "exakt"], "Did you mean 'exact'"),
    ],
)
def test_what_cannot_be_ranked_is_refused(runs, flags, told, capsys):
    assert main(["eval", str(runs / "grpo"), *flags]) != 0
    assert told in capsys.readouterr().err


def test_runs_that_answer_nothing_are_refused(runs):
    with pytest.raises(UserError, match="scores answers and writes none"):
        evaluate_best_of(up.load(runs / "rm"), BestOfRequest(4, "exact"))


def test_a_comparison_samples_no_reward_model(runs, tmp_path):
    answer = up.compare([str(runs / "rm"), str(runs / "grpo")], k=2, out=tmp_path / "compared")
    assert (runs / "grpo" / "samples-at-k.json").is_file() and not (runs / "rm" / "samples-at-k.json").exists()
    assert answer.failures == ()
