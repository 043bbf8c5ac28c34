"""How many problems a run is judged on: as many as were asked for, or all there are, and then it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import upslope as up
from upslope.errors import Remark
from upslope.rollout.evaluation import fewer_than_asked
from upslope.tasks import load_task

SMALL = dict(steps=1, model="tiny:layers=1,width=32", warm_start=0.0, tasks_per_step=2, max_tokens=4, record="none", audit="off")


def test_a_task_with_enough_problems_says_nothing() -> None:
    assert fewer_than_asked(load_task("reverse"), 50) == ""


def test_a_file_with_few_problems_says_how_many_there_are(tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"w{number}", "answer": "a"}) + "\n" for number in range(30)))
    with pytest.warns(Remark, match="--eval-problems 100: few.jsonl has 6 held-out problems that differ"):
        run = up.train("grpo", str(file), reward="exact", eval_problems=100, out=tmp_path / "run", **SMALL)
    (judged,) = {each["problems"] for each in run.evaluations}
    assert judged == 6
