"""Pages of curves: returns beside other libraries, Pong, and SmolLM2 with room for long answers."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench" / "claims"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import curve_file
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
    found = {"command": "it", "machine": "one", "runs": [run], "older": run, "note": ["few"]}
    page = pong_page.write(found, tmp_path).read_text()
    assert f"seed 0, 200 of 300 planned steps, 1.0 minutes: score -21.0 -> {scores[-1]:.1f} (" in page and said in page
    assert (tmp_path / "pong.png").stat().st_size > 1000


def test_a_curve_goes_on_where_it_was_and_newer_steps_count(tmp_path):
    first = curve_file.CurveFile(tmp_path / "run.json", {"seed": 0})
    for step in (1, 2, 3):
        first.take("training", {"step": step, "reward": 0.0})
    first.take("evaluations", {"step": 3})
    again = curve_file.CurveFile(tmp_path / "run.json", {"seed": 1})  # from the checkpoint behind the first step
    again.take("training", {"step": 2, "reward": 1.0})
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["training"] == [{"step": 1, "reward": 0.0}, {"step": 2, "reward": 1.0}] and found["seed"] == 1
    assert found["evaluations"] == [{"step": 3}] and found["minutes"] >= first.found["minutes"] > 0
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


LONG = importlib.import_module("smollm2-long")


def long_curve(task, rewards, scores):
    """As a run leaves it; ``scores`` with their intervals, before and after."""
    judged = [
        {"step": step, "score": score, "low": low, "high": high, "reward": score, "problems": 200}
        for step, (score, low, high) in zip((0, len(rewards)), scores, strict=False)
    ]
    step = {"reward_correct": 0.1, "length": 50.0, "cut": 0.0, "entropy": 1.0, "seconds": 2.0, "seconds_sampling": 1.0}
    points = [{"step": number, "reward": reward, **step} for number, reward in enumerate(rewards, start=1)]
    about = {"task": task, "planned": 100, "settings": {"tasks_per_step": 16, "samples_per_task": 8, "max_tokens": 1024}}
    example = {"step": 1, "prompt": "?", "answer": "a", "response": "b", "reward": 0.0}
    return {**about, "evaluations": judged, "training": points, "examples": [example], "minutes": 3.0, "with": "torch"}


def test_long_answers_are_said_to_be_learned_where_the_difference_excludes_zero(tmp_path):
    rising, level = [0.1, 0.12] * 15 + [0.5, 0.52] * 20, [0.1, 0.3] * 50
    made = {
        "sudoku": long_curve("sudoku", rising, [(0.1, 0.06, 0.14), (0.4, 0.33, 0.47)]),
        "letter_jumble": long_curve("letter_jumble", level, [(0.1, 0.06, 0.14), (0.12, 0.08, 0.17)]),
        "knights_knaves": long_curve("knights_knaves", level[:5], [(0.1, 0.06, 0.14)]),
    }
    for name, curve in made.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(curve))
    LONG.page(tmp_path, tmp_path)
    lines = [line for line in (tmp_path / "smollm2-long.md").read_text().splitlines() if line.startswith("- ")]
    words = [(line.split(": ")[1].split(",")[0], line.split("**")[1]) for line in lines]
    assert words == [
        ("sudoku", "learned"), ("sudoku", "rose"), ("letter_jumble", "not shown"), ("letter_jumble", "not shown"),
        ("knights_knaves", "not judged"),
    ]  # fmt: skip
    # Newcombe: 0.3 - hypot(0.07, 0.04) and 0.3 + hypot(0.07, 0.04)
    assert "difference +0.219 to +0.381" in lines[0] and "difference +0.400," in lines[1]
    assert (tmp_path / "smollm2-long.png").stat().st_size > 1000
    assert len(json.loads((tmp_path / "data" / "smollm2-long.json").read_text())["runs"]) == 3
