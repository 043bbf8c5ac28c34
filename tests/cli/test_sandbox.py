"""``upslope sandbox``: the check in words and as JSON, and a program run by hand."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_programs import needs_sandbox

from upslope.cli import main
from upslope.runtime.sandbox import command, probes
from upslope.runtime.sandbox.probes import Probed

Upslope = Callable[..., tuple[int, str, str]]


@pytest.fixture
def upslope(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upslope:
    """Runs a command in an empty folder; its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("typed\n"))

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


@pytest.fixture
def with_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which one of two limits does not hold."""
    found = [Probed("network", "", "calls out", "said: reached", False), Probed("time", "1 s", "sleeps", "was ended", True)]
    monkeypatch.setattr(probes, "check", lambda: found)
    monkeypatch.setattr(command, "check_tools", lambda weak=False: None)


def test_a_limit_that_does_not_hold_is_an_error(upslope: Upslope, with_hole: None):
    code, out, _ = upslope("sandbox", "check")
    lines = out.splitlines()
    assert code == 2 and lines[0].startswith("user: ") and lines[1].startswith("memory: ")
    assert lines[3:5] == ["BROKEN  network       calls out: said: reached", "holds   time     1 s  sleeps: was ended"]
    assert lines[-1] == "1 of 2 do not hold here (network): no program is run."
    code, out, _ = upslope("sandbox", "check", "--json")
    assert code == 2 and [each["holds"] for each in json.loads(out)["limits"]] == [False, True]


@needs_sandbox
def test_here_everything_holds(upslope: Upslope):
    code, out, err = upslope("sandbox", "check")
    assert (code, err) == (0, "") and out.splitlines()[-1].startswith("All ")


@needs_sandbox
def test_a_program_is_run(upslope: Upslope):
    Path("mine.py").write_text("import sys\nprint(input())\nprint('oh', file=sys.stderr)\nsys.exit(3)")
    assert upslope("sandbox", "run", "mine.py") == (3, "typed\n", "oh\n")
    Path("slow.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    code, out, err = upslope("sandbox", "run", "slow.py", "--seconds", "3")
    assert (code, out) == (2, "begun\n") and err.startswith("upslope: ended by the limit of seconds after ")


def test_what_is_wrong_is_said(upslope: Upslope, monkeypatch: pytest.MonkeyPatch):
    Path("mine.py").write_text("print(1)")
    code, _, err = upslope("sandbox", "run", "mime.py")
    assert code == 2 and "no file 'mime.py'" in err and "Did you mean 'mine.py'?" in err
    assert upslope("sandbox", "run", "mine.py", "--memory", "3")[2].startswith("upslope: the limit memory is 3 megabytes;")
    assert "it needs FILE.py" in upslope("sandbox", "run")[2]
    monkeypatch.setattr(command.shutil, "which", lambda tool: None)
    for words in (["check"], ["run", "mine.py"]):
        code, _, err = upslope("sandbox", *words)
        assert code == 2 and err.endswith("\n  apt-get install bubblewrap util-linux\n")


def test_without_a_command_it_says_what_there_is(upslope: Upslope):
    code, out, _ = upslope("sandbox")
    assert code == 0 and "check" in out and "run" in out
