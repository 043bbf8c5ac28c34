"""What the board's server says of contests: who won, where texts part, the matrix of a group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from board_folders import client, write_rollout, write_run

from upslope.board.contests import LONGEST, MOST_ANSWERS, MOST_CONTESTS
from upslope.rewards.judging import VERDICTS, Judge
from upslope.rewards.preferences import Contest
from upslope.tasks import Problem

NOTHING = {"steps": [], "step": None, "contests": [], "contests_in_all": 0, "trees": [], "judged": []}


def asked(root: Path, **params: Any) -> dict[str, Any]:
    answer = client(root).get("/api/contests", params={"run": "a", **params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def sample(row: int, response: str, **further: Any) -> dict[str, Any]:
    return {"row": row, "response": response, "reward": 0.0, "kept": True, "finish": "stop", **further}


def write(root: Path, *samples: dict[str, Any], step: int = 1, **group: Any) -> Path:
    run = root / "a" if (root / "a").exists() else write_run(root / "a")
    own = {"group": 0, "prompt": "p", "answer": None, "size": len(samples), **group, "samples": [*samples]}
    write_rollout(run, step, {"step": step, "groups": [own]})
    return run


def compared(win_rate: float, best: float, worst: float) -> dict[str, float]:
    return {"win_rate": win_rate, "beats_best": best, "beats_worst": worst}


def test_a_run_without_recordings_and_one_without_contests_have_none(tmp_path: Path):
    write_run(tmp_path / "a")
    assert asked(tmp_path) == NOTHING
    write(tmp_path, sample(0, "x", advantage=1.0), sample(1, "y", advantage=-1.0))
    assert asked(tmp_path) == NOTHING | {"steps": [1], "step": 1}, "rewards alone make no contest"
    assert client(tmp_path).get("/api/contests", params={"run": "a", "step": 9}).status_code == 404


def test_given_sides_stand_side_by_side_from_where_they_part(tmp_path: Path):
    write(
        tmp_path,
        sample(1, "the dog", side=-1, advantage=-1.0, noted={"logp_rejected": -7.5}),
        sample(2, "a cat", side=-1, advantage=-1.0, noted={"logp_rejected": -8.0}),
        sample(0, "the cat", side=1, advantage=1.0, noted={"margin": 0.25, "logp_chosen": -6.5}),
        answer="cat",
    )
    (found,) = asked(tmp_path)["contests"]
    assert (found["prompt"], found["answer"], found["margin"], found["sure"]) == ("p", "cat", 0.25, 1.0)
    assert found["chance"] is found["matrix"] is None, "nobody was asked"
    told = [(each["row"], each["side"], each["given"], each["shared"], each["own"], each["logp"]) for each in found["answers"]]
    assert told == [
        (0, 1, True, "", "the cat", -6.5),  # it parts from the second loser at once
        (1, -1, True, "the ", "dog", -7.5),
        (2, -1, True, "", "a cat", -8.0),
    ]


def test_a_prefix_and_the_whole_part_where_the_prefix_ends(tmp_path: Path):
    write(tmp_path, sample(0, "ab", side=1), sample(1, "abc", side=-1))
    won, lost = asked(tmp_path)["contests"][0]["answers"]
    assert (won["shared"], won["own"], lost["shared"], lost["own"]) == ("ab", "", "ab", "c")


def test_who_won_among_samples_is_said_by_the_advantage_and_how_sure_by_its_size(tmp_path: Path):
    write(
        tmp_path,
        sample(3, "x", kept=False, advantage=None, compared=compared(0.5, 0.3, 0.8)),
        sample(1, "y", advantage=-0.5, compared=compared(0.2, 0.2, 0.5), noted={"logp_rejected": -2.0}),
        sample(0, "z", advantage=0.5, compared=compared(0.75, 0.5, 0.8), noted={"margin": 1.0, "logp_chosen": -1.0}),
    )
    (found,) = asked(tmp_path)["contests"]
    assert [(each["row"], each["side"], each["kept"], each["win_rate"]) for each in found["answers"]] == [
        (0, 1, True, 0.75), (1, -1, True, 0.2), (3, 0, False, 0.5),
    ]  # fmt: skip
    assert found["sure"] == 0.75 and found["chance"] == 0.8
    assert [[round(each, 9) for each in row] for row in found["matrix"]] == [[0.5, 0.8, 0.7], [0.2, 0.5, 0.2], [0.3, 0.8, 0.5]]


def test_of_a_circle_the_third_chance_follows_from_the_win_rates(tmp_path: Path):
    """Rock, scissors, paper: all win half, so that the first is both the best and the worst."""
    rows = [("r", 0.5), ("s", 0.1), ("p", 0.9)]
    samples = [sample(row, name, compared=compared(0.5, rock, rock)) for row, (name, rock) in enumerate(rows)]
    write(tmp_path, *samples)
    (found,) = asked(tmp_path)["contests"]
    wanted = [[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]]
    assert [[round(each, 6) for each in row] for row in found["matrix"]] == wanted
    write(tmp_path, *samples, size=8)
    (found,) = asked(tmp_path)["contests"]
    assert found["matrix"][1][2] is None and found["answers_in_all"] == 8, "win rates over answers that were not recorded say less"


def test_the_best_that_was_not_recorded_gives_no_chance_to_anyone_else(tmp_path: Path):
    write(tmp_path, sample(0, "x", compared=compared(0.6, 0.4, 0.9)), sample(1, "y", compared=compared(0.5, 0.3, 0.8)), size=9)
    (found,) = asked(tmp_path)["contests"]
    assert found["matrix"] is None


def test_a_judges_verdicts_are_read_from_its_file(tmp_path: Path):
    texts = ("one", "two", "three", "two")
    run = write(tmp_path, *(sample(row, text, compared={"win_rate": 0.5}) for row, text in enumerate(texts)))
    judge = Judge("shorter", lambda asked: [_shorter(each.prompt) for each in asked], most_failures=1.0)
    judge.verdicts.keep_in(run / VERDICTS)
    (wanted,), _ = judge.compare([Contest(Problem("p"), texts)])
    judge.compare([Contest(Problem("q"), ("one", "two"))])
    (found,) = asked(tmp_path)["contests"]
    assert found["matrix"] == wanted.tolist() and found["matrix"][0][2] == 1.0
    (run / VERDICTS).write_text((run / VERDICTS).read_text() + '[1, 2\n{"forget": "timeouts"}\n[1, 2, 3, 7, ""]\nnull\n[[], 1]\n')
    assert asked(tmp_path)["contests"][0]["matrix"] == wanted.tolist()


def _shorter(question: str) -> str:
    first, second = question.split("Answer A:\n")[1].split("\n\nSay")[0].split("\n\nAnswer B:\n")
    return "A" if len(first) <= len(second) else "B"


def test_much_of_it_is_cut_and_the_place_where_texts_part_is_kept(tmp_path: Path):
    alike = "x" * (2 * LONGEST)
    samples = [sample(row, alike + str(row) * LONGEST, side=1 if row == 0 else -1) for row in range(9)] * 3
    run = write(tmp_path, *samples)
    (found,) = asked(tmp_path)["contests"]
    assert len(found["answers"]) == MOST_ANSWERS
    first = found["answers"][0]
    assert first["shared"] == "…" + "x" * LONGEST and len(first["own"]) <= LONGEST + 1 and first["own"].startswith("0")
    group = {"group": 0, "prompt": "p", "samples": samples[:2]}
    write_rollout(run, 2, {"step": 2, "groups": [group] * 100, "judged": [{"asked": "?" * 9000, "said": "A"}] * 99})
    found = asked(tmp_path)
    assert found["step"] == 2 and len(found["contests"]) == MOST_CONTESTS and found["contests_in_all"] == 100
    assert len(found["judged"]) == 16 and len(found["judged"][0]["asked"]) == LONGEST + 1


def test_whatever_stands_in_a_record_is_answered(tmp_path: Path):
    odd: list[Any] = [None, 3, "x", [], {}, True, 1e999, "\ud800", {"win_rate": "x", "beats_best": []}, {"margin": 10**400}]
    run = write_run(tmp_path / "a")
    for place, value in enumerate(odd):
        names = ("row", "response", "side", "compared", "noted", "kept", "advantage", "search")
        samples = [dict.fromkeys(names, value)] * 2
        group = {"group": value, "prompt": value, "answer": value, "size": value, "samples": samples}
        write_rollout(run, place + 1, json.dumps({"groups": [group], "judged": value, "trees": value}).encode())
    (run / VERDICTS).write_text(json.dumps(odd) + "\n")
    for place in range(len(odd)):
        assert len(asked(tmp_path, step=place + 1)["contests"]) == 1
