"""What the board's server says of the problems that a run chose and made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from board_folders import client, write_run

from upslope.board.problems import MOST_ANCESTORS, MOST_MADE
from upslope.board.run_summary import MOST_TEXT


def asked(root: Path, **params: Any) -> dict[str, Any]:
    answer = client(root).get("/api/problems", params={"run": "a", **params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def write(root: Path, *lines: dict[str, Any]) -> None:
    run = write_run(root / "a")
    (run / "problems.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def child(name: int, **further: Any) -> dict[str, Any]:
    return {"id": str(name), "prompt": f"p{name}", "made_from": ["p1", "p0"], "made_by": "harder", "generation": 2, **further}


def test_a_run_without_choices_has_none(tmp_path: Path):
    write_run(tmp_path / "a")
    assert asked(tmp_path) == {"steps": [], "step": None, "problems": [], "made": [], "made_in_all": 0}


def test_problems_made_are_told_with_their_ancestors_and_how_often_they_were_taken(tmp_path: Path):
    taken = child(2, answers=4, reward=0.5, chosen={"priority": 0.25, "category": "sums"})
    write(
        tmp_path,
        {
            "step": 1,
            "problems": [{"id": "1", "prompt": "p1", "answers": 4, "reward": 0.0, "chosen": {}}],
            "made": [child(2), child(3)],
        },
        {"step": 2, "problems": [taken], "made": [child(4), child(2)]},
        {"step": 3, "problems": [taken | {"reward": 1.0, "chosen": {"priority": 0.0}}], "made": []},
    )
    found = asked(tmp_path)
    assert found["steps"] == [1, 2, 3] and found["step"] == 3 and found["made_in_all"] == 3
    assert [(each["prompt"], each["taken"], each["step"]) for each in found["made"]] == [("p2", 2, 1), ("p4", 0, 2), ("p3", 0, 1)]
    best = found["made"][0]
    assert best["made_from"] == ["p1", "p0"] and best["made_by"] == "harder" and best["generation"] == 2
    assert best["reward"] == 1.0 and best["chosen"] == {"priority": 0.0}, "what was said the last time"
    (second,) = asked(tmp_path, step=2)["problems"]
    assert second["answers"] == 4 and second["chosen"] == {"priority": 0.25, "category": "sums"}
    assert asked(tmp_path, step=9)["problems"] == []


def test_much_of_it_is_cut(tmp_path: Path):
    long = [child(number, prompt="x" * 2000, made_from=["y" * 500] * 12) for number in range(900)]
    write(tmp_path, {"step": 1, "problems": [], "made": long})
    found = asked(tmp_path)
    assert found["made_in_all"] == 900 and len(found["made"]) == MOST_MADE
    first = found["made"][0]
    assert len(first["prompt"]) == len(first["made_from"][0]) == MOST_TEXT and len(first["made_from"]) == MOST_ANCESTORS
