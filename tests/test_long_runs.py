"""The page of long runs: a curve from what a run's folder says, cut off or not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import long_runs


@pytest.fixture
def folder(tmp_path):
    """Of a run that was cut off in its third step, behind an evaluation of the second."""
    made = tmp_path / "sac-1m"
    made.mkdir()
    (made / "run.toml").write_text(
        'task = "gym:Hopper-v5"\n[build]\ntorch = "2.0"\n[method]\nname = "sac"\n[settings]\n'
        "seed = 4\nenvs = 8\nhorizon = 10\nupdates_per_step = 80\nsteps = 3\nminibatch = 256\nlr = 3e-4\n"
    )
    score = {"low": 8.0, "high": 12.0, "episodes": 5}
    step = {"kind": "step", "updates": 80.0, "seconds": 30.0, "seconds_sampling": 10.0}
    lines = [
        {"kind": "evaluation", "step": 0, "score": 1.0, **score},
        {**step, "step": 1, "env_steps": 80.0},
        {**step, "step": 2, "env_steps": 160.0},
        {"kind": "evaluation", "step": 2, "score": 10.0, **score},
    ]
    (made / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


def test_a_runs_folder_gives_its_curve_and_its_speed(folder):
    run = long_runs.read(folder)
    assert [(point["at"], point["score"]) for point in run["curve"]] == [(0.0, 1.0), (160.0, 10.0)]
    assert (run["updates"], run["minutes"], run["updates_per_second"]) == (160.0, 1.0, 4.0)
    assert run["acting_share"] == pytest.approx(1 / 3)


def test_the_page_says_what_came_out_and_is_written_anew_from_its_data(folder, tmp_path, capsys):
    long_runs.main(["page", str(folder), "--pages", str(tmp_path / "pages")])
    told = capsys.readouterr().out
    assert (
        "- sac: gym:Hopper-v5, 160 steps: return **10** (8 to 12 over 5 episodes; 1 untrained, 1 at the evaluation before" in told
    )
    assert "before it). Cut off at 160 of 240 steps. 160 updates" in told
    assert (tmp_path / "pages" / "long-runs.png").exists()
    long_runs.main(["page", "--pages", str(tmp_path / "pages")])
    assert capsys.readouterr().out == told


def test_a_run_that_falls_back_is_said_to(folder, tmp_path, capsys):
    metrics = folder / "metrics.jsonl"
    again = {"kind": "step", "updates": 80.0, "seconds": 30.0, "seconds_sampling": 10.0, "step": 3, "env_steps": 240.0}
    judged = {"kind": "evaluation", "step": 3, "score": 8.9, "low": 8.0, "high": 12.0, "episodes": 5}
    metrics.write_text(metrics.read_text() + json.dumps(again) + "\n" + json.dumps(judged) + "\n")
    long_runs.main(["page", str(folder), "--pages", str(tmp_path / "pages")])
    told = capsys.readouterr().out
    assert "Cut off" not in told
    assert "it). Of 1 evaluations after the first within a tenth of the highest, 1 fell below that. 240 updates" in told
