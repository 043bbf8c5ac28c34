"""The list of runs says what their files say: which there are, what they scored, and whether anybody is at work on them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import tomli_w
from board_folders import append, evaluation, plan, step, write_run

from upslope.board import safe_files
from upslope.board.index import Gone, Runs, find_runs
from upslope.board.run_summary import RunSummary, read_plan
from upslope.runtime.process_file import FILE, at_work, process_began, worker


def glance(run: Path) -> dict:
    found = RunSummary(run.name)
    with safe_files.folder(run) as at:
        found.look(at)
    return found.record(time.time())


def test_the_list_says_what_the_files_say(tmp_path: Path):
    run = write_run(tmp_path / "a", steps=30, method="dhpo")
    found = glance(run)
    assert (found["method"], found["parent"], found["task"], found["domain"]) == ("dhpo", "grpo", "reverse", "text")
    assert (found["step"], found["steps"], found["score_before"], found["score"], found["low"]) == (30, 30, 0.2, 0.8, 0.7)
    assert found["status"] == "finished" and found["spark"] == [number / 10 for number in range(1, 31)]
    control = glance(write_run(tmp_path / "b", method="ppo", task="gym:CartPole-v1", finished=False))
    assert control["domain"] == "control" and control["score_name"] == "mean return"
    assert (control["score"], control["score_before"], control["tokens"]) == (0.8, 0.2, None)


def test_a_start_alone_leads_nowhere(tmp_path: Path):
    run = write_run(tmp_path / "a", steps=1, finished=False)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(next(line for line in lines if '"evaluation"' in line) + "\n")
    append(run, step(1))
    assert (glance(run)["score_before"], glance(run)["score"]) == (None, 0.2)
    append(run, evaluation(1, 0.2))
    assert (glance(run)["score_before"], glance(run)["score"]) == (0.2, 0.2)


def test_a_long_log_is_glanced_at_from_its_ends(tmp_path: Path):
    run = write_run(tmp_path / "a", steps=1, finished=False)
    append(run, *(step(number) for number in range(2, 5001)), evaluation(5000, 0.9), '{"kind": "st')
    found = glance(run)
    assert found["step"] == 5000 and found["score_before"] == 0.2 and found["score"] == 0.9
    assert len(found["spark"]) == 40 and found["spark"] == sorted(found["spark"]) and found["spark"][-1] > 490


def test_the_excerpt_of_a_plan_is_what_the_whole_says(tmp_path: Path):
    for table in (plan("dhpo"), plan("ppo", "gym:CartPole-v1"), plan("grpo", 'odd "task" [x]\nname = 3')):
        whole = tomli_w.dumps(table)
        found = read_plan(whole.encode())
        assert found["task"] == table["task"] and found["settings"]["seed"] == table["settings"]["seed"]
        assert {key: found["method"][key] for key in ("name", "parent", "family")} == {
            key: table["method"][key] for key in ("name", "parent", "family")
        }
        by_hand = whole.replace("[settings]", '[other]\ntext = """\n[method]\nname = "wrong"\n"""\n[settings]')
        assert read_plan(by_hand.encode())["method"]["name"] == table["method"]["name"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("run.toml", b"task = ", "run.toml cannot be read"),
        ("run.toml", b'task = "x"\n', "it has no"),
        ("run.toml", b"\xff\xfe", "run.toml cannot be read"),
        ("run.toml", b"#" * (2**20 + 1), "more than 1 MiB"),
        ("summary.json", b"{", "summary.json cannot be read"),
        ("summary.json", b"[1]", "no JSON object"),
    ],
)
def test_a_broken_run_says_what_is_broken_and_hides_no_other(tmp_path: Path, name: str, content: bytes, why: str):
    write_run(tmp_path / "good")
    run = write_run(tmp_path / "bad")
    (run / name).write_bytes(content)
    runs = {each["id"]: each for each in Runs(tmp_path).listing()["runs"]}
    assert runs["bad"]["status"] == "broken" and why in runs["bad"]["why"] and runs["good"]["status"] == "finished"
    json.dumps(runs["bad"], allow_nan=False)


def test_odd_values_never_reach_the_list(tmp_path: Path):
    run = write_run(tmp_path / "a")
    (run / "summary.json").write_text(
        '{"score_after": NaN, "score_before": 1e999, "steps": "many", "score": 3, "score_after_interval": 7, "tokens": true}'
    )
    append(run, '{"kind": "step", "step": 11, "reward": NaN}\n', '{"kind": "step", "step": 12, "reward": 1e999}\n')
    found = glance(run)
    json.dumps(found, allow_nan=False)
    assert found["score"] is None and found["score_before"] is None and found["step"] is None and found["tokens"] is None


def test_runs_are_found_in_folders_and_links_are_not_followed(tmp_path: Path):
    root = tmp_path / "runs"
    write_run(root / "a")
    write_run(root / "compare-1" / "b")
    write_run(root / ".hidden")
    outside = write_run(tmp_path / "outside")
    (root / "link").symlink_to(outside)
    (root / "folder-link").symlink_to(tmp_path)
    (root / "c").mkdir()
    (root / "c" / "run.toml").symlink_to(outside / "run.toml")
    write_run(root / "a" / "checkpoints" / "inner")
    assert list(find_runs(root)) == ["a", "compare-1/b"]
    assert list(find_runs(tmp_path / "nothing")) == []


def test_the_list_tells_what_changed_and_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("upslope.board.index.FRESH", 0.0)
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", finished=False)
    runs = Runs(tmp_path)
    first = runs.listing()
    assert [each["id"] for each in first["runs"]] == ["a", "b"] and first["full"]
    assert runs.listing(first["revision"])["runs"] == []
    append(b, step(11))
    second = runs.listing(first["revision"])
    assert [(each["id"], each["step"]) for each in second["runs"]] == [("b", 11)] and not second["full"]
    shutil.rmtree(a)
    third = runs.listing(second["revision"])
    assert third["gone"] == ["a"] and third["runs"] == []
    with pytest.raises(Gone, match="run 'a' is gone"):
        runs.find("a")
    write_run(tmp_path / "a")
    fourth = runs.listing(third["revision"])
    assert fourth["gone"] == [] and [each["id"] for each in fourth["runs"]] == ["a"]
    assert runs.listing(5)["full"], "a revision of an earlier life of the board"
    assert runs.listing(fourth["revision"] + 100)["full"]


# -- under way or not ------------------------------------------------------------------------------------------------------


def test_a_run_is_running_while_its_process_lives(tmp_path: Path):
    run = write_run(tmp_path / "a", finished=False)
    os.utime(run / "metrics.jsonl", (1, 1))
    os.utime(run / "run.toml", (1, 1))
    assert glance(run)["status"] == "stopped", "nobody is named, and nothing was written lately"
    with at_work(run):
        assert glance(run)["status"] == "running"
    assert glance(run)["status"] == "stopped"
    os.utime(run / "metrics.jsonl")
    assert glance(run)["status"] == "stopped", "it said that it ended"
    (run / FILE).unlink()
    assert glance(run)["status"] == "running", "nobody is named, but something was written just now"


def test_a_killed_process_and_one_that_took_its_number_do_not_count(tmp_path: Path):
    run = write_run(tmp_path / "a", finished=False)
    with subprocess.Popen(["sleep", "60"]) as child:
        record = {"host": platform.node(), "pid": child.pid, "began": process_began(child.pid)}
        (run / FILE).write_text(json.dumps(record))
        assert worker(record) == child.pid and glance(run)["status"] == "running"
        child.kill()
        end = time.monotonic() + 30
        while worker(record) is not None and time.monotonic() < end:
            time.sleep(0.02)
        assert worker(record) is None, "dead, though nobody has asked yet how it died"
    assert worker(record) is None and glance(run)["status"] == "crashed"
    mine = {"host": platform.node(), "pid": os.getpid(), "began": process_began(os.getpid())}
    assert worker(mine) == os.getpid() and worker(mine | {"began": 1}) is None and worker(mine | {"host": "elsewhere"}) is None
    for pid in (0, 1, -1, True, "7", None, 2**70):
        assert worker(mine | {"pid": pid}) is None


def test_a_run_of_another_machine_is_judged_by_its_last_line(tmp_path: Path):
    run = write_run(tmp_path / "a", finished=False)
    (run / FILE).write_text(json.dumps({"host": "elsewhere", "pid": 5, "began": 3}))
    assert glance(run)["status"] == "running"
    for name in ("metrics.jsonl", "run.toml"):
        os.utime(run / name, (1, 1))
    assert glance(run)["status"] == "stopped"


def test_a_run_deleted_under_its_process_does_not_hide_how_it_ended(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with pytest.raises(ZeroDivisionError), at_work(tmp_path / "a"):
        shutil.rmtree(tmp_path / "a")
        raise ZeroDivisionError
    assert not (tmp_path / "a").exists()
