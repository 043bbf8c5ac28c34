"""Resuming from the page runs a run's own code: it is named and shown first, and runs only if exactly that was agreed to."""

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
from board_folders import client, plan, write_run

from upslope.board import control, launch, run_code
from upslope.board.index import Runs
from upslope.board.launch import LOG, Launcher
from upslope.errors import UserError
from upslope.runtime import process_file, trust, user_code

OURS = {"X-Upslope": "board"}
REWARD = "import helper\n\ndef score(prompts, responses, answers):\n    return [helper.one()] * len(responses)\n"


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is trusted, and what comes to be is forgotten with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Words of the processes that would have been started; each says that it is under way."""
    words: list[list[str]] = []

    class Fake:
        returncode = None

        def __init__(self, command: list[str], **_: Any):
            words.append(command)
            mine = {"host": os.uname().nodename, "pid": os.getpid(), "began": process_file.process_began(os.getpid())}
            Path(command[command.index("resume") + 1], process_file.FILE).write_text(json.dumps(mine))

        def poll(self) -> None:
            return None

    monkeypatch.setattr(launch.subprocess, "Popen", Fake)
    return words


def stopped_run(run: Path, **changes: Any) -> Path:
    """A run that could be resumed, with what its plan says changed."""
    write_run(run, finished=False)
    (run / process_file.FILE).write_text(json.dumps({"ended": 1.0}))
    (run / "run.toml").write_text(tomli_w.dumps(plan() | changes))
    return run


def with_reward(run: Path, source: str = REWARD, attribute: str = "score") -> Path:
    """A stopped run with a reward of its own and the neighbour that it imports."""
    folder = run.parent.parent / f"source-{run.name}"
    folder.mkdir()
    (folder / "mine.py").write_text(source)
    (folder / "helper.py").write_text("def one():\n    return 1.0\n")
    bundle = user_code.Bundle.around(folder / "mine.py")
    named = f"{bundle.folder_name}/mine.py:{attribute}@{bundle.digest[: user_code.SHOWN]}"
    stopped_run(run, reward=named)
    bundle.write(run / "code" / bundle.folder_name)
    return run


def resume(root: Path, allow_control: bool = True, **asked: Any) -> Any:
    return client(root, allow_control).post("/api/resume", json=asked, headers=OURS)


# -- asked on the page -----------------------------------------------------------------------------------------------------


def test_a_run_without_code_of_its_own_is_resumed_at_once(tmp_path: Path, launched: list[list[str]]):
    stopped_run(tmp_path / "runs" / "a")
    assert resume(tmp_path / "runs", run="a").json() == {"id": "a"}
    assert launched[0][1:] == ["-P", "-m", "upslope", "resume", str(tmp_path / "runs" / "a"), "--quiet"]


def test_strange_code_is_named_and_shown_and_runs_only_when_exactly_it_was_agreed_to(tmp_path: Path, launched: list[list[str]]):
    run = with_reward(tmp_path / "runs" / "a")
    asked = resume(tmp_path / "runs", run="a")
    assert asked.status_code == 409 and "did not write" in asked.json()["error"]
    (code,) = asked.json()["code"]
    assert code["what"].endswith("/mine.py") and len(code["digest"]) == 64
    assert [(Path(file["name"]).name, file["cut"]) for file in code["files"]] == [("mine.py", False), ("helper.py", False)]
    assert code["files"][0]["text"] == REWARD and str(tmp_path) not in asked.text.replace(str(run), "")
    for wrong in ([], ["0" * 64], [code["digest"], "0" * 64], [code["digest"][:16]]):
        assert resume(tmp_path / "runs", run="a", trust=wrong).status_code == 409
    for nonsense in ("x", {}, [1], True):
        assert resume(tmp_path / "runs", run="a", trust=nonsense).status_code == 400
    assert resume(tmp_path / "runs", allow_control=False, run="a", trust=[code["digest"]]).status_code == 403
    assert launched == [] and trust.trusted() == set()
    assert resume(tmp_path / "runs", run="a", trust=[code["digest"]]).status_code == 200
    assert len(launched) == 1 and trust.trusted() == {code["digest"]}, "and it is not asked again"


def test_code_that_changes_between_question_and_answer_is_refused(tmp_path: Path, launched: list[list[str]]):
    run = with_reward(tmp_path / "runs" / "a")
    (code,) = resume(tmp_path / "runs", run="a").json()["code"]
    other = user_code.Bundle(tmp_path, "mine.py", {"mine.py": b"print('other')\n"})
    other.write(run / "code" / other.folder_name)
    table = plan() | {"reward": f"{other.folder_name}/mine.py:score@{other.digest[: user_code.SHOWN]}"}
    (run / "run.toml").write_text(tomli_w.dumps(table))
    again = resume(tmp_path / "runs", run="a", trust=[code["digest"]])
    assert again.status_code == 409 and "no longer what you were asked about" in again.json()["error"]
    assert [each["digest"] for each in again.json()["code"]] == [other.digest]
    (run / "code" / other.folder_name / "mine.py").write_text("print('a third')\n")
    changed = resume(tmp_path / "runs", run="a", trust=[other.digest])
    assert changed.status_code == 400 and "is not the code this run was started with" in changed.json()["error"]
    assert launched == [] and trust.trusted() == set()


def test_a_module_that_gymnasium_would_import_is_asked_for_too(tmp_path: Path, launched: list[list[str]]):
    stopped_run(tmp_path / "runs" / "a", task="gym:some_module:Env-v0")
    asked = resume(tmp_path / "runs", run="a")
    assert (
        asked.status_code == 409 and "'some_module'" in asked.json()["code"][0]["what"] and asked.json()["code"][0]["files"] == []
    )
    assert "some_module" not in sys.modules and launched == []


def test_an_agreement_that_cannot_be_kept_is_said(tmp_path: Path, launched: list[list[str]], own_store: Path):
    with_reward(tmp_path / "runs" / "a")
    own_store.write_text("a file where the folder should be")
    (code,) = resume(tmp_path / "runs", run="a").json()["code"]
    answer = resume(tmp_path / "runs", run="a", trust=[code["digest"]])
    assert answer.status_code == 400 and "upslope resume --trust" in answer.json()["error"] and launched == []


def test_sources_are_shown_only_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[list[str]]):
    monkeypatch.setattr(run_code, "SHOWN_CHARACTERS", 20)
    monkeypatch.setattr(run_code, "SHOWN_FILES", 2)
    files = {"mine.py": b"# \xff\xfe not UTF-8, and long", "a.so": b"\x7fELF\0", "b.py": b"x"}
    bundle = user_code.Bundle(tmp_path, "mine.py", files)
    run = stopped_run(tmp_path / "runs" / "a", reward=f"{bundle.folder_name}/mine.py:score@{bundle.digest[: user_code.SHOWN]}")
    bundle.write(run / "code" / bundle.folder_name)
    shown = resume(tmp_path / "runs", run="a").json()["code"][0]["files"]
    assert [(each["text"], each["cut"], each["bytes"]) for each in shown] == [
        ("# \ufffd\ufffd not UTF-8, and ", True, len(files["mine.py"])),
        (None, True, 5),
        (None, True, 1),
    ]


# -- hostile folders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward": "/etc/evil.py:score@0123456789abcdef"}, "outside of the run's own code"),
        ({"reward": "../../evil.py:score@0123456789abcdef"}, "outside of the run's own code"),
        ({"reward": "code/evil.py:score"}, "does not name code with its digest"),
        ({"reward": "gone/evil.py:score@0123456789abcdef"}, "is missing"),
        (
            {"method": plan()["method"] | {"advantage": {"part": "/etc/evil.py:Part@0123456789abcdef"}}},
            "outside of the run's own code",
        ),
    ],
)
def test_code_that_is_not_the_runs_own_is_refused_in_one_line(tmp_path: Path, launched: list, change: dict, said: str):
    stopped_run(tmp_path / "runs" / "a", **change)
    answer = resume(tmp_path / "runs", run="a")
    assert answer.status_code == 400 and said in answer.json()["error"] and launched == []
    assert "upslope-board-" not in answer.text, "the copy that was looked at is nobody's business"


@pytest.mark.parametrize("kind", ["code", "bundle", "file", "pipe", "large", "many", "deep"])
def test_links_pipes_and_too_much_are_refused_before_they_are_read(
    tmp_path: Path, launched: list, monkeypatch: pytest.MonkeyPatch, kind: str
):
    run = with_reward(tmp_path / "runs" / "a")
    code = run / "code"
    (bundle,) = code.iterdir()
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.py").write_text("the key")
    if kind == "code":
        code.rename(secret / "code")
        code.symlink_to(secret / "code")
    elif kind == "bundle":
        bundle.rename(secret / "bundle")
        bundle.symlink_to(secret / "bundle")
    elif kind == "file":
        (bundle / "more.py").symlink_to(secret / "key.py")
    elif kind == "pipe":
        os.mkfifo(bundle / "more.py")
    elif kind == "large":
        with (bundle / "more.py").open("wb") as file:
            file.truncate(2**40)
    elif kind == "many":
        monkeypatch.setattr(run_code, "MOST_FILES", 1)
    else:
        (bundle / "/".join("abcdefghijklmn")).mkdir(parents=True)
    answer = resume(tmp_path / "runs", run="a")
    assert answer.status_code == 400 and "cannot be resumed" in answer.json()["error"] and "the key" not in answer.text
    assert launched == []


def test_a_source_that_no_parser_survives_is_refused(tmp_path: Path, launched: list):
    run = stopped_run(tmp_path / "runs" / "a")
    source = b"-" * 300_000 + b"1"
    (run / "code").mkdir()
    (run / "code" / "mine.py").write_bytes(source)  # as runs kept it before there were bundles
    digest = user_code.digest_of({"mine.py": source})[: user_code.SHOWN]
    (run / "run.toml").write_text(tomli_w.dumps(plan() | {"reward": f"mine.py:score@{digest}"}))
    answer = resume(tmp_path / "runs", run="a")
    assert answer.status_code in (400, 409) and launched == []


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_the_log_of_a_run_is_written_to_no_other_file(tmp_path: Path, launched: list, kind: str):
    run = stopped_run(tmp_path / "runs" / "a")
    precious = tmp_path / "precious.txt"
    precious.write_text("keep me")
    if kind == "link":
        (run / LOG).symlink_to(precious)
    elif kind == "hard link":
        os.link(precious, run / LOG)
    elif kind == "pipe":
        os.mkfifo(run / LOG)
    else:
        (run / LOG).mkdir()
    answer = resume(tmp_path / "runs", run="a")
    assert answer.status_code == 400 and LOG in answer.json()["error"]
    assert precious.read_text() == "keep me" and launched == []


# -- beginning -------------------------------------------------------------------------------------------------------------


def scripted(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """What is started is this, of a shell, with the folder of the run as ``$1``."""
    real = subprocess.Popen

    def start(words: list[str], **options: Any) -> Any:
        return real(["sh", "-c", script, "sh", words[words.index("--out") + 1]], **options)

    monkeypatch.setattr(launch.subprocess, "Popen", start)


def test_the_log_stays_beside_the_folder_until_the_run_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = "ls -A $1 > $1/../seen; echo first; touch $1/run.toml; until test -e $1/output.log; do sleep 0.01; done; echo second"
    scripted(monkeypatch, seen)
    folder = tmp_path / "run"
    folder.mkdir()
    launcher = Launcher(patience=30)
    launcher.begin(["train", "--out", str(folder)], folder)
    assert (tmp_path / "seen").read_text() == "", "the folder was empty when the run began"
    launcher._children[0].wait(30)
    assert (folder / LOG).read_text() == "first\nsecond\n", "what it prints goes along with the file"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "seen"]


@pytest.mark.parametrize("left", ["", "touch $1/run.lock $1/process.json; mkdir $1/code; touch $1/code/a.py;"])
def test_a_start_that_fails_leaves_neither_folder_nor_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str):
    scripted(monkeypatch, f"{left} echo 'upslope: no room here.'; exit 2")
    with pytest.raises(UserError, match=r"^no room here\.$"):
        control.Starter(Runs(tmp_path)).start({"method": "grpo"})
    assert list(tmp_path.iterdir()) == []


def test_files_of_somebody_else_in_the_folder_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scripted(monkeypatch, "touch $1/theirs.txt; exit 2")
    with pytest.raises(UserError, match="ended with code 2 and without a word"):
        control.Starter(Runs(tmp_path)).start({"method": "grpo"})
    assert [each.name for each in tmp_path.rglob("*")] == ["grpo-reverse-0", "theirs.txt"]


@pytest.mark.parametrize("begins", [True, False])
def test_a_run_that_takes_long_to_begin_is_settled_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool):
    monkeypatch.setattr(launch, "LOOK", 0.001)
    scripted(monkeypatch, f"until test -e $1/../go; do sleep 0.01; done; {'touch $1/run.toml' if begins else 'exit 2'}")
    folder = tmp_path / "run"
    folder.mkdir()
    Launcher(patience=0).begin(["train", "--out", str(folder)], folder)
    assert list(folder.iterdir()) == []
    (tmp_path / "go").touch()
    expected = ["go", "run"] if begins else ["go"]
    until = time.monotonic() + 30
    while sorted(each.name for each in tmp_path.iterdir()) != expected:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not begins or (folder / LOG).exists()
