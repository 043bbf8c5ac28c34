"""Settings and knobs of runs as flat values."""

from __future__ import annotations

from pathlib import Path

import tomli_w
from board_folders import client, plan, write_run

from upslope.board.facts import read_facts


def test_settings_and_knobs_are_read_as_set_takes_them():
    table = plan("dhpo", "sort", {"surrogate.sequence.high": 0.3}, lr=3e-4, seed=7)
    table["reward"] = ["style-1a2b3c4d/my_style.py:score@1a2b3c4d5e6f7081"]
    found = read_facts(tomli_w.dumps(table))
    assert found["surrogate.sequence.high"] == 0.3 and found["lr"] == 3e-4 and found["seed"] == 7
    assert found["task"] == "sort" and found["reward"] == "my_style.py:score"
    assert found["ratio"] == "Hybrid" and found["plain"] is False
    assert not any(key.startswith(("paper", "on.")) for key in found)


def test_one_part_of_a_slot_needs_no_position_and_several_have_theirs():
    one = '[[method.filter]]\npart = "filter.A"\nsize = 3\n'
    assert read_facts(one) == {"filter": "A", "filter.size": 3}
    assert read_facts(one + '\n[[method.filter]]\npart = "filter.B"\n[method.filter.inner]\nwidth = [\n    8,\n    4,\n]\n') == {
        "filter.0": "A", "filter.0.size": 3, "filter.1": "B", "filter.1.inner.width": "8, 4",
    }  # fmt: skip


def test_whatever_else_a_file_holds_is_passed_over():
    long = f'long = "{"x" * 5000}"\n{"y" * 500} = 1\nbig = {10**400}'
    assert read_facts(f"[settings]\nlr = \x00\nnot a line\n{long}") == {
        "lr": "\x00", "long": "x" * 160, "big": str(10**400)[:160],
    }  # fmt: skip


def test_runs_are_told_by_what_they_have_otherwise_than_most(tmp_path: Path):
    for seed in (0, 1, 2):
        write_run(tmp_path / f"usual-{seed}", seed=seed)
    write_run(tmp_path / "wide", knobs={"surrogate.high": 0.4})
    found = client(tmp_path).get("/api/facts").json()
    assert found["common"]["grpo"]["surrogate.high"] == 0.2 and found["common"]["grpo"]["task"] == "reverse"
    assert found["runs"] == {"usual-0": {}, "usual-1": {"seed": 1}, "usual-2": {"seed": 2}, "wide": {"surrogate.high": 0.4}}
    assert "wide" in client(tmp_path).get("/api/facts").json()["runs"]
