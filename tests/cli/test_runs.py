"""``upslope runs``: what is there, how far it is, and who works for it."""

from __future__ import annotations

import json

import pytest

from upslope.cli import main
from upslope.cli.runs import described, looked_at
from upslope.errors import UserError


@pytest.fixture
def folder(tmp_path):
    import upslope as up

    small = {"model": "tiny:layers=1,width=16", "steps": 2, "tasks_per_step": 2, "samples_per_task": 2, "warm_start": 0.0}
    up.train("grpo", "reverse:length=2", **small, eval_problems=4, out=tmp_path / "runs" / "one")
    return tmp_path / "runs"


def test_a_folder_of_runs_is_a_table_and_a_run_a_description(folder, capsys):
    assert main(["runs", str(folder)]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "status", "method", "task", "step", "score", "time"]
    assert row.split()[:5] == ["one", "finished", "grpo", "reverse:length=2", "2/2"]
    assert main(["runs", str(folder), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["method"] == "grpo" and record["step"] == 2
    assert main(["runs", str(folder / "one")]) == 0
    told = capsys.readouterr().out
    assert "grpo on reverse:length=2, step 2 of 2" in told and "last step: reward" in told and "worker" not in told


def test_workers_of_a_run_under_way_are_described(folder):
    worker = {"number": 0, "pid": 77, "doing": "sampling", "version": 3, "rows": 64, "seconds": 1.5, "lost": 1}
    (folder / "one" / "workers.json").write_text(
        json.dumps({"workers": [worker], "waiting_for_workers": 2, "faults": {"worker_died": 1}})
    )
    record = looked_at(folder / "one")
    assert record["workers"] == [], "a run that is over has nobody at work"
    told = described(record | {"workers": [worker], "learners": [77, 78], "status": "running"})
    assert "learners: processes 77, 78" in told
    assert "worker 0 (process 77): sampling, weights of step 3, 64 rows in 1.5 s, replaced 1 times" in told
    assert "waiting to be sampled: 2" in told and "faults: worker_died 1" in told


def test_processes_that_score_are_described(folder):
    scorer = {"number": 1, "pid": 78, "doing": "scoring", "rows": 9, "seconds": 0.5, "lost": 2}
    told = {"reward_workers": [scorer], "waiting_for_reward_workers": 3, "faults": {"reward_dropped": 1}}
    (folder / "one" / "workers.json").write_text(json.dumps(told))
    found = described(looked_at(folder / "one") | {"reward_workers": [scorer], "status": "running"})
    assert "reward process 1 (process 78): scoring, 9 answers in 0.5 s, replaced 2 times" in found
    assert "waiting to be scored: answers to 3 problems" in found and "faults: reward_dropped 1" in found


def test_where_there_is_nothing_it_says_so(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out
    with pytest.raises(UserError, match="no folder"):
        from argparse import Namespace

        from upslope.cli.runs import runs

        runs(Namespace(path=str(tmp_path / "nowhere"), once=True, json=False))
