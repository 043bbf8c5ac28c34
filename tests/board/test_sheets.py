"""Episodes are drawn on demand from what a run kept, and only where that is safe."""

import json
import sys
from pathlib import Path

import pytest

from upslope.board import sheets as module
from upslope.board.sheets import Sheets

RECORD = {"seed": 7, "length": 6, "actions": [0, 1, 0, 1, 1, 0], "rewards": [1.0] * 6}


def test_an_episode_is_drawn_once_and_kept():
    sheets = Sheets()
    first = sheets.of("gym:CartPole-v1", RECORD)
    assert first.layout is not None and first.layout["count"] == 7 and first.path is not None
    assert first.path.read_bytes().startswith(b"\x89PNG")
    assert sheets.of("gym:CartPole-v1", RECORD) is first
    folder = first.path.parent
    del sheets
    assert not folder.exists(), "what was drawn goes with the board"


@pytest.mark.parametrize(
    ("task", "changes", "why"),
    [
        ("gym:some.package:Thing-v0", {}, "only gymnasium's own"),
        ("gym:../../x", {}, "only gymnasium's own"),
        ("gym:some-v1:render_mode=human", {}, "only gymnasium's own"),
        ("reverse", {}, "only gymnasium's own"),
        ("gym:CartPole-v1", {"length": 7}, "not one of ours"),
        ("gym:CartPole-v1", {"actions": "0101", "length": 4}, "not one of ours"),
        ("gym:CartPole-v1", {"actions": [], "length": 0}, "not one of ours"),
        ("gym:CartPole-v1", {"length": 20_000, "actions": [0] * 20_000}, "not one of ours"),
    ],
)
def test_what_is_not_safe_to_play_is_not_played(task, changes, why, monkeypatch):
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    sheet = Sheets().of(task, RECORD | changes)
    assert sheet.layout is None and why in sheet.why


@pytest.mark.parametrize("task", ["ALE/Pong-v5", "MiniGrid-Empty-5x5-v0", "Hopper-v5:params.gravity=1.5x,params.body_mass=2x"])
def test_ids_of_known_packages_and_other_physics_are_played(task, monkeypatch):
    started = []
    monkeypatch.setattr(
        module.subprocess, "run", lambda command, **_: started.append(command) or module.subprocess.CompletedProcess([], 1, "", "")
    )
    Sheets().of(f"gym:{task}", RECORD)
    assert [command[-3] for command in started] == [f"gym:{task}"]


def test_an_environment_that_cannot_be_drawn_says_why():
    sheet = Sheets().of("gym:CartPoel-v1", RECORD)
    assert sheet.layout is None and "CartPoel" in sheet.why
    bad = Sheets().of("gym:CartPole-v1", RECORD | {"actions": [5, 1, 0, 1, 1, 0]})
    assert bad.layout is None and bad.why


def test_a_drawing_that_hangs_is_given_up(monkeypatch):
    real = module.subprocess.run

    def slow(command, **options):
        return real([sys.executable, "-c", "import time; time.sleep(30)"], **options)

    monkeypatch.setattr(module, "PATIENCE", 0.3)
    monkeypatch.setattr(module.subprocess, "run", slow)
    sheet = Sheets().of("gym:CartPole-v1", RECORD)
    assert sheet.layout is None and "took more than" in sheet.why


def test_only_the_newest_are_kept(monkeypatch):
    drawn = []

    def quick(command, **_):
        path = command[-1]
        Path(path).write_bytes(b"\x89PNG")
        drawn.append(path)
        return module.subprocess.CompletedProcess(command, 0, json.dumps({"count": 1}), "")

    monkeypatch.setattr(module, "KEPT", 2)
    monkeypatch.setattr(module.subprocess, "run", quick)
    sheets = Sheets()
    kept = [sheets.of("gym:CartPole-v1", RECORD | {"seed": seed}) for seed in (1, 2, 3)]
    assert [each.path.exists() for each in kept] == [False, True, True] and len(drawn) == 3
