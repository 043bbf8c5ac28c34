"""The command ``upslope board``: what it can be given, and how it begins and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from board_folders import write_run

from upslope.board.command import check_installed, listen, runs_folder
from upslope.cli import main
from upslope.errors import MissingExtra, UserError


def test_the_folder_must_be_one_that_holds_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert runs_folder(None) == Path("runs"), "the usual one may come later"
    run = write_run(tmp_path / "runs" / "a")
    assert runs_folder(str(tmp_path / "runs")) == tmp_path / "runs"
    with pytest.raises(UserError, match=f"upslope board {tmp_path / 'runs'}"):
        runs_folder(str(run))
    with pytest.raises(UserError, match="no folder 'rusn'"):
        runs_folder("rusn")
    with pytest.raises(UserError, match="is no folder"):
        runs_folder(str(run / "run.toml"))


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_its_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, missing: str):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=rf"{missing}.*not installed[\s\S]*pip install .*\[board\]"):
        check_installed()


def test_what_cannot_be_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("UPSLOPE_BOARD_TOKEN", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, said in (
            (["--port", port], "Take another --port"),
            (["--port", "70000"], "Take another --port"),
            (["--port", "x"], "not a whole number"),
            (["--host", "0.0.0.0"], "there is no key. Give --token, or set UPSLOPE_BOARD_TOKEN"),
            (["--host", "no.such.host.invalid", "--token", "k"], "cannot listen at no.such.host.invalid"),
            (["--token", "two words"], "visible ASCII"),
            (["--tokn", "k"], "Did you mean '--token'"),
        ):
            assert main(["board", str(tmp_path), *words]) == 2
            assert said in capsys.readouterr().err


def test_a_port_of_its_own_choice():
    with listen("127.0.0.1", 0) as made:
        assert made.getsockname()[1] > 0
    with listen("::1", 0) as made:
        assert made.family == socket.AF_INET6


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", "open/sesame?"])
def test_the_command_serves_until_interrupted(tmp_path: Path, token: str):
    write_run(tmp_path / "a")
    words = [sys.executable, "-m", "upslope", "board", str(tmp_path), "--port", "0", *(["--token", token] if token else [])]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as started:
        assert started.stdout is not None and started.stderr is not None
        address = started.stdout.readline().strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address) as page:  # follows from the token to the page
            assert page.status == 200 and page.url.endswith("/") and "server" not in {name.lower() for name in page.headers}
        with opener.open(address.partition("?")[0] + "api/runs") as answer:
            assert [each["id"] for each in json.load(answer)["runs"]] == ["a"]
        started.send_signal(signal.SIGINT)
        assert started.wait(20) == 0
        said = started.stderr.read()
        assert "Ctrl-C ends it" in said and "Traceback" not in said
