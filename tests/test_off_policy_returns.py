"""Returns beside other libraries: both sides run small, and are compared where both have come."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import off_policy_returns as returns

SMALL = {"STEPS": 120, "POINTS": 2, "EPISODES": 1, "DATA_STEPS": 400, "UPDATES": {"td3-bc": 6, "iql": 6, "cql": 4}}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "side"), returns.SIDES)
def test_every_side_reports_a_curve(tmp_path, monkeypatch, method, side):
    for name, value in SMALL.items():
        monkeypatch.setattr(returns, name, value)
    returns.run((method, side, 1), str(tmp_path), "cpu")
    (file,) = tmp_path.iterdir()
    told = json.loads(file.read_text())
    assert [len(point["returns"]) for point in told["curve"]] == [1, 1] and told["device"] == "cpu"
    assert told["curve"][-1]["at"] == (120 if method in returns.ONLINE else SMALL["UPDATES"][method])


def written(folder, side, seed, finals):
    curve = [{"at": 10 * (number + 1), "returns": [each]} for number, each in enumerate(finals)]
    told = {"method": "td3", "side": side, "seed": seed, "device": "cuda", "seconds": 1.0, "curve": curve}
    (folder / f"td3-{side}-{seed}.json").write_text(json.dumps(told))


def test_sides_are_compared_at_the_last_point_that_all_runs_have_reached(tmp_path):
    for side, seed, finals in (("ours", 0, [1, 5, 90]), ("ours", 1, [1, 7, 90]), ("peer", 0, [1, 9]), ("peer", 1, [1, 11, 90])):
        written(tmp_path, side, seed, finals)
    found = returns.summary(tmp_path)
    ours, peer = found["summary"]["td3, ours"], found["summary"]["td3, peer"]
    assert (ours["at"], ours["return"], peer["at"], peer["return"]) == (20, 6.0, 20, 10.0)
    # Two seeds one apart from their mean: a standard error of 1, times Student's t of one degree of freedom.
    assert ours["interval"] == pytest.approx([6 - 12.706, 6 + 12.706]) and found["overlap"] == {"td3": True}


def test_intervals_apart_are_told_so_and_one_seed_has_none(tmp_path):
    for side, seed, final in (("ours", 0, 1.0), ("ours", 1, 1.1), ("peer", 0, 9.0), ("peer", 1, 9.1)):
        written(tmp_path, side, seed, [final])
    assert returns.summary(tmp_path)["overlap"] == {"td3": False}
    (tmp_path / "td3-peer-1.json").unlink()
    found = returns.summary(tmp_path)
    assert found["overlap"] == {} and found["summary"]["td3, peer"]["interval"] is None


def test_a_summary_runs_nothing(tmp_path, capsys):
    written(tmp_path / ".", "ours", 0, [3.0])
    returns.main(["--summary", "--work", str(tmp_path), "--out", str(tmp_path / "told.txt")])
    assert json.loads((tmp_path / "told.txt").read_text())["summary"]["td3, ours"]["return"] == 3.0
    assert '"td3, ours"' in capsys.readouterr().out
