"""Folders made by an enemy or broken by chance: nothing in them is run, and every question about them is answered in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from board_folders import append, client, evaluation, plan, step, write_rollout, write_run
from starlette.testclient import TestClient

from upslope.board import launch
from upslope.board.app import make_app
from upslope.board.command import runs_folder
from upslope.board.log_table import LogTable
from upslope.cli import main
from upslope.errors import UserError
from upslope.runtime.code_bundle import digest_of

pytestmark = pytest.mark.slow

QUESTIONS = {
    "/": {}, "/page/{name:path}": {}, "/api/runs": {}, "/api/methods": {}, "/api/catalogue": {}, "/api/tasks": {},
    "/api/keys": {"run": "a"}, "/api/curves": {"run": "a", "key": "reward"}, "/api/bands": {"run": "a", "key": "reward"},
    "/api/rollouts": {"run": "a"}, "/api/rollout": {"run": "a", "step": 1}, "/api/episodes": {"run": "a"},
    "/api/episode": {"run": "a", "step": 1}, "/api/frames": {"run": "a", "step": 1}, "/api/method": {"run": "a"},
    "/api/settings": {"run": "a"}, "/api/problems": {"run": "a", "step": 1},
    "/api/contests": {"run": "a", "step": 1}, "/api/workers": {"run": "a"}, "/api/facts": {}, "/api/crash": {"run": "a"},
}  # fmt: skip
"""One for every route that can be asked."""


def ask_everything(board: TestClient) -> dict[str, int]:
    """The status of every answer; none may be a failure of the board."""
    found = {}
    for path, params in QUESTIONS.items():
        answer = board.get(path.replace("{name:path}", "js/main.js"), params=params)
        assert answer.status_code < 500, f"{path}: {answer.text}"
        assert answer.status_code < 400 or set(answer.json()) == {"error"}
        found[path] = answer.status_code
    return found


def test_every_route_is_asked(tmp_path: Path):
    app: Any = make_app(tmp_path, None).app.app  # type: ignore[arg-type]
    routes = {route.path for route in app.routes if "GET" in getattr(route, "methods", ())}
    assert routes == set(QUESTIONS)


# -- code ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is made by whatever runs; modules that would make it can be imported, from this process and its children."""
    mark, traps = tmp_path / "canary", tmp_path / "traps"
    traps.mkdir()
    source = f"open({str(mark)!r}, 'w').close()\n"
    for name in ("trap_module", "trap_environment", "trap_part"):
        (traps / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(traps)]))
    monkeypatch.syspath_prepend(str(traps))
    return mark


def hostile_run(root: Path, source: str, **changes: Any) -> Path:
    """A run that names the same trap in every way there is: its own code, by digest; changes are to its plan."""
    run = write_run(root / "a", finished=False)
    (run / "process.json").write_text(json.dumps({"ended": 1}))
    digest = digest_of({"evil.py": source.encode()})
    for folder in (run / "code" / f"evil-{digest[:8]}", run / "code", run, root):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "evil.py").write_text(source)
        (folder / "sitecustomize.py").write_text(source)
        (folder / "conftest.py").write_text(source)
    own = f"evil-{digest[:8]}/evil.py"
    table = plan() | {"reward": f"{own}:score@{digest[:16]}", "task": f"{own}:Task@{digest[:16]}"}
    table["method"] |= {
        "name": f"{own}:method@{digest[:16]}", "parent": f"{own}:method@{digest[:16]}",
        "ratio": {"part": f"{own}:Part@{digest[:16]}"}, "advantage": {"part": "trap_part:Part"},
        "surrogate": {"part": f"{run}/evil.py:Part@{digest[:16]}"}, "regularize": [{"part": "../../evil.py:Part"}],
    }  # fmt: skip
    (run / "run.toml").write_text(tomli_w.dumps(table | changes))
    write_rollout(run, 1, {"step": 1, "groups": []})
    (run / "episodes").mkdir()
    (run / "episodes" / "step-000001.json").write_text(json.dumps({"seed": 0, "length": 1, "actions": [0], "rewards": [1.0]}))
    return run


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"task": "gym:trap_module:Trap-v0"},
        {"task": "gym:trap_module/Trap-v0"},
        {"task": "gym:trap_environment:CartPole-v1"},
        {"task": "trap_module:Task", "reward": "trap_module:score"},
        {"task": "code/evil.py:Task", "reward": "../../evil.py:score"},
        {"model": "trap_module", "test_data": "evil.py", "trackers": ["trap_module"]},
    ],
    ids=str,
)
def test_nothing_that_a_folder_holds_or_names_is_run_by_looking(tmp_path: Path, canary: Path, monkeypatch, changes: dict):
    root = tmp_path / "runs"
    run = hostile_run(root, (tmp_path / "traps" / "trap_module.py").read_text(), **changes)
    monkeypatch.chdir(run)
    statuses = ask_everything(client(root))
    assert statuses["/api/method"] == statuses["/api/settings"] == statuses["/api/episode"] == 200
    asked = client(root, allow_control=True).post("/api/resume", json={"run": "a"}, headers={"X-Upslope": "board"})
    assert asked.status_code in (400, 409), "to resume is the one thing that would, and it asks"
    assert not canary.exists() and not {"trap_module", "trap_environment", "trap_part"} & set(sys.modules)


@pytest.mark.slow
def test_what_lies_in_the_folder_the_board_was_started_in_is_not_imported(tmp_path: Path, canary: Path, monkeypatch):
    """A name of Python's own library is enough, if that folder comes first."""
    root = tmp_path / "runs"
    run = write_run(root / "a", finished=False)
    (run / "process.json").write_text(json.dumps({"ended": 1}))
    (run / "run.toml").write_text(tomli_w.dumps(plan() | {"task": "no-such-task"}))
    for name in ("argparse", "torch", "numpy", "gymnasium"):
        (root / f"{name}.py").write_text((tmp_path / "traps" / "trap_module.py").read_text())
    monkeypatch.chdir(root)
    client(root, allow_control=True).post("/api/resume", json={"run": "a"}, headers={"X-Upslope": "board"})
    until = time.monotonic() + 60
    while "no-such-task" not in (run / "output.log").read_text():  # the process got as far as the task
        assert time.monotonic() < until and not canary.exists(), (run / "output.log").read_text()
        time.sleep(0.05)
    assert not canary.exists()


# -- broken files ----------------------------------------------------------------------------------------------------------

DEEP = {
    "json": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "toml": b"task = " + b"[" * 100_000 + b"]" * 100_000,
    "dots": b"[method]\nname = 'x'\nnotes." + b".".join([b"a"] * 50_000) + b" = 1\n[settings]\nseed = 1\n",
    "slot": b"[settings]\nseed = 1\n[method]\nname = 'grpo'\n[method.ratio." + b".".join([b"a"] * 600) + b"]\nb = 1\n",
}
HUGE = b"9" * 5000


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe\x00", b"\xef\xbb\xbf[method]", b"method = 3\nsettings = 3", b"[method]\n[settings]\n[method]",
        b"[method]\nname = 3\nparent = [1]\npaper = 3\nformula = {}\non = 3\n[settings]\nseed = 'x'\nsteps = inf",
        b"trackers = 3\ntask = 3\nmodel = 1979-05-27\nreward = [1]\n[method]\nname = 'grpo'\n[settings]\nlr = nan\nseed = 1e400",
        b"task = 'gym:x'\n[method]\nname = 'ppo'\nratio = [[[1]]]\nsurrogate = 1979-05-27\nadvantage = {part = 3}\n[settings]",
        b"[method]\nname = 'grpo'\n[settings]\nseed = " + HUGE, b"[method]\nname = '\x00'\n[settings]\n",
        b"task = '" + b"t" * 900_000 + b"'\n[method]\nname = 'grpo'\nformula = '" + b"(" * 3000 + b"'\n[settings]\n",
        b"#" * 1_100_000, DEEP["toml"], DEEP["dots"], DEEP["slot"],
        b"[method]\nname = 'grpo'\nretain = 3\nmemory = [3]\nregularize = {a = {}}\n[settings]\nmax_tokens = 'x'\ndevice = {a = 1}",
    ],
    ids=range(16),
)  # fmt: skip
def test_a_plan_of_any_shape_is_answered_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes):
    real = subprocess.Popen  # what the library says of such a plan is for its own tests
    monkeypatch.setattr(launch.subprocess, "Popen", lambda _, **options: real(["false"], **options))
    run = write_run(tmp_path / "a")
    (run / "run.toml").write_bytes(content)
    write_run(tmp_path / "b")
    board = client(tmp_path, allow_control=True)
    ask_everything(board)
    runs = board.get("/api/runs").json()["runs"]
    assert [each["id"] for each in runs] == ["a", "b"] and len(json.dumps(runs)) < 10_000
    assert board.get("/api/bands", params={"run": ["a", "b"], "key": "reward"}).status_code == 200, "one does not spoil the other"
    (run / "summary.json").unlink()
    (run / "process.json").write_text(json.dumps({"ended": 1}))
    assert board.post("/api/resume", json={"run": "a"}, headers={"X-Upslope": "board"}).status_code == 400


@pytest.mark.parametrize("name", ["summary.json", "process.json", "episodes/step-000001.json", "rollouts.jsonl", "metrics.jsonl",
                                  "problems.jsonl", "verdicts.jsonl"])  # fmt: skip
@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n\n\n", b"\xff\xfe\x00", b"[]", b"3", b"null", b'{"a": "\\ud800"}', DEEP["json"], b"{" * 50_000,
        b'{"steps": 1e999, "seconds": NaN, "score_after": ' + HUGE + b"}", b'{"steps": ' + b"9" * 400 + b', "score": [1]}',
        b'{"pid": 99999999999999999999, "host": 3, "began": {}}', b'{"ended": [], "pid": true, "score_after_interval": [[], {}]}',
        b'{"kind": "step", "step": "x", "reward": {}}\n{"kind": "step", "step": ' + b"9" * 400 + b', "\\udfff": 1}\n',
        b'{"kind": "evaluation", "step": 1e400, "score": "high"}\n', b'{"step": 1, "seed": {}, "length": -1, "actions": "x"}',
        b'{"step": 1, "seed": 0, "length": 1, "actions": [{"a": []}], "rewards": 3}',
        b'{"step": 1, "problems": [3, {"id": [], "chosen": [1], "answers": {}, "made_from": {"a": 1}}], "made": {"id": 1}}\n'
        b'{"step": 1, "problems": [{"prompt": 1, "chosen": {"a": [], "b": 1e999}}], "made": [{"id": "1", "made_from": [[]]}]}\n',
    ],
    ids=range(18),
)  # fmt: skip
def test_a_file_of_any_content_is_answered_in_words(tmp_path: Path, name: str, content: bytes):
    run = write_run(tmp_path / "a")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(content)
    ask_everything(client(tmp_path))


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
@pytest.mark.parametrize(
    "name",
    [
        "run.toml",
        "summary.json",
        "process.json",
        "metrics.jsonl",
        "rollouts.jsonl",
        "problems.jsonl",
        "verdicts.jsonl",
        "rollouts",
        "episodes",
    ],
)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str, kind: str):
    run = write_run(tmp_path / "a")
    (run / name).unlink(missing_ok=True)
    if kind == "link":
        (run / name).symlink_to(run / name)
    elif kind == "folder":
        (run / name).mkdir()
    else:
        os.mkfifo(run / name)
    ask_everything(client(tmp_path))


def test_what_a_mended_run_holds_is_nothing_to_worry_about(tmp_path: Path):
    run = write_run(tmp_path / "a", steps=0)
    append(run, step(1), "\n", "\n", step(4), evaluation(4, 0.5))
    (run / "metrics.jsonl.damaged").write_bytes(b'{"kind": "st\xff')
    (run / "run.lock").touch()
    for name in ("damaged-step-000004", "step-000002", "step-latest"):
        (run / "checkpoints" / name).mkdir(parents=True)
    board = client(tmp_path)
    assert all(status == 200 for path, status in ask_everything(board).items() if "step" not in QUESTIONS[path])
    (found,) = board.get("/api/runs").json()["runs"]
    assert (found["status"], found["why"]) == ("finished", "")
    assert board.get("/api/keys?run=a").json()["bad_lines"] == 0
    assert board.get("/api/curves?run=a&key=reward").json()["curves"][0]["x"] == [1, 4]


def test_a_log_with_a_new_name_in_every_line_takes_little(tmp_path: Path):
    lines = [json.dumps({"kind": "step", "step": number, f"name{number}": 1.0}) for number in range(5000)]
    lines += [json.dumps({"kind": "step", "step": 5000, "x" * 1000: 1.0})]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    table = LogTable()
    with (tmp_path / "metrics.jsonl").open("rb") as file:
        table.read_on(file)
    assert table.steps.rows == 5001 and len(table.steps.names) < 512 and "x" * 1000 not in table.steps.names


# -- the command -----------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    for name in ("file", "file/below", "x" * 300, "a\0b"):
        with pytest.raises(UserError) as refused:
            runs_folder(str(tmp_path / name))
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 600

    def denied(_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        runs_folder(str(tmp_path))


@pytest.mark.parametrize(
    "words", [["--port", "99999"], ["--port", "-1"], ["--port", "9" * 5000], ["--host", "\udcff"], ["--host", "a\0b"]]
)
def test_an_address_that_cannot_be_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]):
    assert main(["board", str(tmp_path), "--token", "k", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("upslope: ") and said.count("\n") == 1 and "Traceback" not in said
