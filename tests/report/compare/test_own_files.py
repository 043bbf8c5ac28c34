"""Methods, data and rewards of one's own take part in a comparison by their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import upslope as up
from upslope.api import method
from upslope.report.compare.cells import Question, check

SMALL = dict(steps=1, tasks_per_step=2, samples_per_task=4, warm_start=0.0, max_tokens=4, eval_problems=2, checkpoint_every=1)
OWN_METHODS = """
from upslope.methods import grpo
from upslope.parts import TokenMean, Whiten

mine = grpo.derive(name="mine", shape=Whiten())
other = grpo.derive(name="other", aggregate=TokenMean())
"""
OWN_REWARD = "def score(prompts, responses, answers):\n    return [float(len(each) > 2) for each in responses]\n"


@pytest.mark.slow
def test_what_is_ones_own_is_compared_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "methods.py").write_text(OWN_METHODS)
    (tmp_path / "mine" / "reward.py").write_text(OWN_REWARD)
    rows = [json.dumps({"prompt": f"say {letter}", "answer": letter}) for letter in "abcdefghijklmnopqrst"]
    (tmp_path / "mine" / "problems.jsonl").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    many = ("grpo", "mine/methods.py:mine", "mine/methods.py:other", "dhpo+mine/methods.py:mine")
    question = Question(many, ("mine/problems.jsonl",), 1, reward=("mine/reward.py:score",),
                        knobs={"mine/methods.py:other:surrogate.high": 0.3})  # fmt: skip
    checked = check(question, method)
    assert [cell.label for cell in checked.cells] == ["grpo", "mine", "other", "dhpo+mine"]
    assert checked.methods["other", "mine/problems.jsonl"]["surrogate"]["high"] == 0.3
    asked = {**SMALL, "model": "tiny:layers=1,width=32", "seeds": 1, "k": 0}
    answer = up.compare(many[-1], "mine/problems.jsonl", reward="mine/reward.py:score", **asked)
    assert not answer.failures and answer.path == Path("runs/compare-dhpo+mine-mine-problems.jsonl")
    (path,) = answer.comparison.runs["dhpo+mine"]
    assert up.load(path).plan.method.name == "dhpo+mine"
    there = answer.path.absolute()
    monkeypatch.chdir("/")
    again = up.compare(str(there), out=tmp_path / "again")  # the report can be made again from anywhere
    assert again.comparison.labels == answer.comparison.labels
