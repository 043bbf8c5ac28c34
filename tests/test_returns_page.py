"""The page of returns beside other libraries: what overlaps, and whether runs are in order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import pong_page
import returns_page


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [([3, 4], [1, 2], "all of ours above"), ([1, 2], [3, 4], "all of ours below"), ([1, 4], [2, 3], "mixed"), ([2], [2], "mixed")],
)
def test_runs_are_in_order_only_if_all_are(ours, theirs, said):
    assert returns_page.order(ours, theirs) == said


def side(finals):
    return {"at": 60_000, "seeds": 2, "return": 1.0, "interval": [0.0, 2.0], "finals": finals, "seconds": 5.0}


def test_a_line_for_each_method_and_a_plot(tmp_path):
    runs = [
        {"method": "td3", "side": name, "seed": 0, "curve": [{"at": 10, "returns": [1.0, 2.0]}]}
        for name in ("ours", "Stable-Baselines3")
    ]
    summary = {"td3, Stable-Baselines3": side([1, 2]), "td3, ours": side([3, 4])}
    found = {"command": "it", "summary": summary, "overlap": {"td3": False}, "runs": runs}
    (tmp_path / "found.json").write_text(json.dumps(found))
    returns_page.main(["--found", str(tmp_path / "found.json"), "--pages", str(tmp_path)])
    page = (tmp_path / "returns-beside-peers.md").read_text()
    said = "- td3: Hopper-v5, 60,000 steps: return 1 (0 to 2, 2 seeds), Stable-Baselines3 1 (0 to 2, 2 seeds): "
    assert f"{said}intervals do not overlap; runs: all of ours above." in page and "| td3 | upslope | 3, 4 | 5 |" in page
    assert (tmp_path / "returns-beside-peers.png").stat().st_size > 1000


@pytest.mark.parametrize(("scores", "said"), [((-21, -9, -4), "not finished and still rising."), ((-21, -4, -9), "not finished.")])
def test_pong_says_that_it_is_not_finished(tmp_path, scores, said):
    judged = [
        {"env_steps": 100 * number, "minutes": 1.0, "score": score, "low": score, "high": score, "episodes": 5}
        for number, score in enumerate(scores)
    ]
    about = {"method": "dqn", "task": "pong", "settings": {"envs": 2}, "knobs": {}, "seed": 0, "planned_steps": 300}
    run = {**about, "evaluations": judged, "training": [{"env_steps": 50, "episode_return": -20.0}, {"env_steps": 90}]}
    found = {"command": "it", "machine": "one", "runs": [run], "older": run}
    page = pong_page.write(found, tmp_path).read_text()
    assert f"seed 0, 200 of 300 planned steps, 1.0 minutes: score -21.0 -> {scores[-1]:.1f} (" in page and said in page
    assert (tmp_path / "pong.png").stat().st_size > 1000
