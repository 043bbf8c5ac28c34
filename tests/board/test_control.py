"""Starting, stopping and resuming from the page: only with leave, only by our page, and only what the library would take."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from board_folders import ADDRESS, client, write_run
from places import ROOT

from upslope.board import launch
from upslope.board.control import Starter, train_words
from upslope.board.index import Gone, Runs
from upslope.errors import UserError
from upslope.runtime import process_file

OURS = {"X-Upslope": "board"}


def test_without_leave_nothing_can_be_done(tmp_path: Path):
    run = write_run(tmp_path / "a", finished=False)
    for what in ("start", "stop", "resume"):
        answer = client(tmp_path).post(f"/api/{what}", json={"run": "a", "method": "grpo"}, headers=OURS)
        assert answer.status_code == 403 and "--allow-control" in answer.json()["error"]
    assert [each.name for each in tmp_path.iterdir()] == [run.name]


def test_only_our_own_page_can_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    write_run(tmp_path / "a", finished=False)
    browser = client(tmp_path, allow_control=True)
    body = json.dumps({"run": "a"}).encode()
    as_json = {"Content-Type": "application/json"}
    for headers, status in (
        (as_json, 403),
        ({**as_json, "X-Upslope": "other"}, 403),
        ({**OURS, "Content-Type": "text/plain"}, 415),
        ({**OURS, "Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({**OURS, **as_json, "Origin": "http://evil.example"}, 403),
        ({**OURS, **as_json, "Sec-Fetch-Site": "same-site"}, 403),
        ({**OURS, **as_json, "Host": "evil.example"}, 421),
    ):
        answer = browser.post("/api/resume", content=body, headers=headers)
        assert answer.status_code == status and "error" in answer.json(), headers
    for content, status in ((b"{", 400), (b"[]", 400), (b"x" * 70_000, 413), (b"[" * 60_000, 400), (b"\xff", 400)):
        assert browser.post("/api/start", content=content, headers={**OURS, **as_json}).status_code == status
    assert browser.get("/api/start", headers=OURS).status_code == 405
    stop = browser.post("/api/stop", content=body, headers={**OURS, **as_json, "Origin": ADDRESS})
    assert stop.status_code == 400 and "not under way" in stop.json()["error"], "this one got as far as the run"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "no method named ''"),
        ({"method": "grpoo"}, "Did you mean 'grpo'"),
        ({"method": "mine.py"}, "no method named"),
        ({"method": "--help"}, "no method named"),
        ({"method": 3}, "must be text"),
        ({"method": "grpo", "task": "revers"}, "Did you mean 'reverse'"),
        ({"method": "grpo", "task": "evil.py:Task"}, "cannot be started from the page"),
        ({"method": "grpo", "task": "/etc/problems.jsonl"}, "cannot be started from the page"),
        ({"method": "grpo", "task": "--out=/tmp/x"}, "cannot be started from the page"),
        ({"method": "grpo", "task": "gym:some_module:Env-v0"}, "cannot be started from the page"),
        ({"method": "grpo", "task": "reverse+gym:some_module:Env-v0"}, "cannot be started from the page"),
        ({"method": "grpo", "task": f"reverse+{ROOT / 'examples' / 'problems.jsonl'}"}, "cannot be started from the page"),
        ({"method": "grpo", "steps": 1.5}, "whole number"),
        ({"method": "grpo", "steps": True}, "whole number"),
        ({"method": "grpo", "steps": -1}, "at least 0"),
        ({"method": "grpo", "settings": {"lr": "fast"}}, "must be a number"),
        ({"method": "grpo", "settings": {"lrr": 1}}, "Did you mean 'lr'"),
        ({"method": "grpo", "settings": {"engine": "http://10.0.0.1"}}, "no setting named 'engine'"),
        ({"method": "grpo", "settings": {"lr": [1]}}, "a number, a word"),
        ({"method": "grpo", "set": {"surrogate.hi": 1}}, "has no knob 'hi'"),
        ({"method": "grpo", "set": {"surrogate.high": {}}}, "a number, a word"),
        ({"method": "grpo", "out": "/tmp/x"}, "no field 'out'"),
    ],
)
def test_what_the_library_would_refuse_is_refused_before_anything_starts(tmp_path: Path, monkeypatch, asked: dict, said: str):
    monkeypatch.setattr(launch.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    answer = client(tmp_path, allow_control=True).post("/api/start", json=asked, headers=OURS)
    assert answer.status_code == 400 and said in answer.json()["error"]
    assert list(tmp_path.iterdir()) == []


def test_what_was_asked_becomes_words_that_no_shell_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = {
        "method": "dhpo+high-entropy", "task": "sort:length=3", "steps": 5, "seed": 2, "set": {"surrogate.token.high": 0.4},
        "settings": {"lr": 1e-4, "watch_kl": False, "stop": "; rm -rf /"},
    }  # fmt: skip
    words = ["train", "dhpo+high-entropy", "--task", "sort:length=3", "--set", "surrogate.token.high=0.4", "--steps=5", "--seed=2"]
    assert train_words(asked) == [*words, "--lr=0.0001", "--no-watch-kl", "--stop=; rm -rf /"]
    started: list[Any] = []

    class Fake:
        returncode = None

        def __init__(self, words: list[str], **options: Any):
            started.append((words, options))
            (Path(words[words.index("--out") + 1]) / "run.toml").touch()

        def poll(self) -> None:
            return None

    monkeypatch.setattr(launch.subprocess, "Popen", Fake)
    starter = Starter(Runs(tmp_path))
    assert [starter.start(asked)["id"] for _ in range(2)] == [
        "dhpo+high-entropy-sort-length3-2",
        "dhpo+high-entropy-sort-length3-2-2",
    ]
    words, options = started[0]
    assert isinstance(words, list) and words[1:4] == ["-P", "-m", "upslope"] and not options.get("shell")
    assert options["start_new_session"] and options["stdin"] == subprocess.DEVNULL


def test_a_run_that_ends_before_it_begins_is_quoted_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = subprocess.Popen

    def failing(words: list[str], **options: Any) -> Any:
        return real(["sh", "-c", "echo noise; echo 'upslope: no room here.' >&2; exit 2"], **options)

    monkeypatch.setattr(launch.subprocess, "Popen", failing)
    with pytest.raises(UserError, match=r"^no room here\.$"):
        Starter(Runs(tmp_path)).start({"method": "grpo"})
    assert list(tmp_path.iterdir()) == []


def test_stopping_reaches_the_process_that_is_named_and_no_other(tmp_path: Path):
    run = write_run(tmp_path / "a", finished=False)
    starter = Starter(Runs(tmp_path))
    with subprocess.Popen(["sleep", "60"]) as child:
        honest = {"host": __import__("platform").node(), "pid": child.pid, "began": process_file.process_began(child.pid)}
        for record in (honest | {"began": 1}, honest | {"host": "x"}, {"pid": child.pid}, [child.pid], {"ended": 3}):
            (run / process_file.FILE).write_text(json.dumps(record))
            with pytest.raises(UserError, match="not under way"):
                starter.stop({"run": "a"})
        assert child.poll() is None
        (run / process_file.FILE).write_text(json.dumps(honest))
        assert starter.stop({"run": "a"}) == {"id": "a"}
        assert child.wait(10) == -signal.SIGINT


@pytest.mark.parametrize(("finished", "status"), [(True, "finished"), (False, "running")])
def test_only_a_stopped_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool, status: str):
    monkeypatch.setattr(launch.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    write_run(tmp_path / "a", finished=finished)
    starter = Starter(Runs(tmp_path))
    with pytest.raises(UserError, match=f"is {status}"):
        starter.resume({"run": "a"})
    with pytest.raises(Gone):
        starter.resume({"run": "../a"})
    with pytest.raises(UserError, match="say which run"):
        starter.resume({"run": 3})


@pytest.mark.slow
def test_a_run_is_started_stopped_and_resumed_to_its_end(tmp_path: Path):
    browser = client(tmp_path, allow_control=True)

    def status(run: str) -> dict[str, Any]:
        return next(each for each in browser.get("/api/runs").json()["runs"] if each["id"] == run)

    def wait_for(run: str, wanted: Any) -> None:
        until = time.monotonic() + 120
        while not wanted(status(run)):
            assert time.monotonic() < until, status(run)
            time.sleep(0.2)

    def post(what: str, body: dict[str, Any]) -> Any:
        answer = browser.post(f"/api/{what}", json=body, headers=OURS)
        assert answer.status_code == 200, answer.text
        return answer.json()

    settings = {"tasks_per_step": 2, "samples_per_task": 2, "eval_problems": 4, "warm_start": 0.0, "checkpoint_every": 1}
    run = post("start", {"method": "grpo", "task": "reverse:length=2", "steps": 1500, "settings": settings})["id"]
    assert run == "grpo-reverse-length2-0"
    wait_for(run, lambda each: each["step"] and each["status"] == "running")
    record = json.loads((tmp_path / run / process_file.FILE).read_text())
    assert os.getpgid(record["pid"]) == record["pid"], "a group of its own: Ctrl-C on the board does not reach it"
    refused = browser.post("/api/resume", json={"run": run}, headers=OURS)
    assert refused.status_code == 400 and "is running" in refused.json()["error"]
    post("stop", {"run": run})
    wait_for(run, lambda each: each["status"] == "stopped")
    stopped = status(run)["step"]
    assert stopped < 1500
    post("resume", {"run": run})
    wait_for(run, lambda each: each["step"] > stopped and each["status"] == "running")
    post("stop", {"run": run})
    wait_for(run, lambda each: each["status"] == "stopped")
