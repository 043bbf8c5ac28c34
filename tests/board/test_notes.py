"""Notes and tags on runs: who may write them, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from board_folders import client, write_run

from upslope.board.notes import read_notes

HEADERS = {"X-Upslope": "board"}


def test_only_a_board_with_leave_writes_and_the_file_is_whole(tmp_path: Path):
    run = write_run(tmp_path / "a")
    body = {"run": "a", "note": " keep this \n", "tags": ["good", "paper-2", "good"]}
    refused = client(tmp_path).post("/api/notes", json=body, headers=HEADERS)
    assert refused.status_code == 403 and not (run / "notes.json").exists()
    board = client(tmp_path, allow_control=True)
    assert board.post("/api/notes", json=body).status_code == 403, "a form on somebody's page has no such header"
    assert board.post("/api/notes", json=body, headers=HEADERS).json() == {"note": "keep this", "tags": ["good", "paper-2"]}
    assert json.loads((run / "notes.json").read_text()) == {"note": "keep this", "tags": ["good", "paper-2"]}
    assert sorted(path.name for path in run.iterdir()) == ["metrics.jsonl", "notes.json", "run.toml", "summary.json"]
    (listed,) = client(tmp_path).get("/api/runs").json()["runs"]
    assert listed["note"] == "keep this" and listed["tags"] == ["good", "paper-2"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tags": ["two words"]}, "without blanks"),
        ({"tags": ["x" * 41]}, "1 to 40"),
        ({"tags": [f"t{number}" for number in range(21)]}, "at most 20"),
        ({"tags": "good"}, "a list"),
        ({"note": "x" * 4001}, "4,000"),
        ({"note": 3}, "a text"),
        ({"colour": "red"}, "no field 'colour'"),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(tmp_path: Path, body: dict, said: str):
    run = write_run(tmp_path / "a")
    answer = client(tmp_path, allow_control=True).post("/api/notes", json={"run": "a"} | body, headers=HEADERS)
    assert answer.status_code == 400 and said in answer.json()["error"]
    assert not (run / "notes.json").exists()


def test_a_link_in_a_strangers_run_is_replaced_and_never_followed(tmp_path: Path):
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    run = write_run(tmp_path / "runs" / "a")
    (run / "notes.json").symlink_to(outside)
    board = client(tmp_path / "runs", allow_control=True)
    assert board.post("/api/notes", json={"run": "a", "note": "n"}, headers=HEADERS).status_code == 200
    assert outside.read_text() == "{}" and not (run / "notes.json").is_symlink()
    assert board.post("/api/notes", json={"run": "../outside", "note": "n"}, headers=HEADERS).status_code == 404


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"tags": 3, "note": []}', b"[" * 100_000])
def test_a_file_that_is_not_ours_says_nothing(data: bytes):
    assert read_notes(data) in ({}, {"note": "", "tags": []})
