"""What a comparison says of itself, the command that makes it again, and how it ends while it times or samples."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_runs import fake_run

from upslope.cli import main
from upslope.cli.parsers import parsers
from upslope.report.compare.cells import Question, read_command, write_question
from upslope.report.compare.command import _asked
from upslope.report.compare.comparing import Options, compare_runs
from upslope.report.compare.running import Interrupted, ended_with_us, launch

QUESTION = Question(
    ("grpo", "gspo"), ("reverse:length=3", "sum"), 3, "tiny:layers=1", {"grpo:surrogate.high": 0.3}, {"lr": [1e-4, 3e-4]},
    {"steps": 20, "warm_start": 0.0, "normalise_rewards": False, "seed": 4}, ("exact", "length:max=4*0.1"), take={"ratio": "gspo"},
)  # fmt: skip


def test_the_command_of_a_question_asks_it_again() -> None:
    words = shlex.split(QUESTION.command())
    assert words[:4] == ["upslope", "compare", "grpo", "gspo"]
    asked = _asked(parsers()[0].parse_args(words[1:]))
    again = Question(
        tuple(asked["what"]), tuple(asked["task"]), asked["seeds"], asked["model"], asked["knobs"], asked["grid"],
        {name: asked[name] for name in QUESTION.settings}, asked["reward"], asked["test_data"], asked["take"], tuple(asked["data"]),
    )  # fmt: skip
    assert again.grid == QUESTION.grid and again.settings == QUESTION.settings and again.reward == QUESTION.reward
    assert [cell.folder for cell in again.cells()] == [cell.folder for cell in QUESTION.cells()]


def test_it_is_kept_as_long_as_one_command_makes_all_of_it(tmp_path: Path) -> None:
    one, more = Question(("grpo",)), Question(("gspo",))
    write_question(tmp_path, one, one.cells())
    assert read_command(tmp_path) == "upslope compare grpo --task reverse --seeds 5"
    write_question(tmp_path, one, one.cells(), Options(k=2, threshold=0.5, references={"reverse": (0.0, 1.0)}).flags())
    assert read_command(tmp_path).endswith("--seeds 5 --k 2 --threshold 0.5 --reference reverse=0,1")
    (tmp_path / one.cells()[0].folder).mkdir()
    write_question(tmp_path, more, more.cells())
    assert read_command(tmp_path) == ""


def test_reports_say_what_was_run_and_what_it_was_judged_by(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    runs = [fake_run(tmp_path, name, seed, 0.5 + 0.1 * seed) for name in ("grpo", "gspo") for seed in range(3)]
    answer = compare_runs(runs, Options(out=tmp_path / "found", quiet=True))
    told = answer.comparison.conditions
    assert (
        told.startswith("3 seeds each, ") and "steps" in told and "model tiny" in told and "held-out problems, one greedy" in told
    )
    for name in ("report.md", "report.html"):
        assert told in (answer.path / name).read_text()
    assert told[0].upper() + told[1:] in (answer.path / "table.tex").read_text()
    assert answer.comparison.command == "" and "horizon" not in answer.comparison.settings["reverse"]
    assert main(["compare", *map(str, runs), "--out", str(tmp_path / "found")]) == 0
    printed = capsys.readouterr().out
    assert told in printed and "report.html (beside it report.md, table.tex, numbers.csv, comparison.json)" in printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_ends_it_ends_what_keeps_nothing_with_all_that_it_started(tmp_path: Path, number: int) -> None:
    child = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    child += "open(sys.argv[1], 'w').write(str(p.pid)); time.sleep(60)"
    process = launch([sys.executable, "-c", child, str(tmp_path / "pid")], subprocess.DEVNULL, 1)

    def interrupt() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted, match="nothing has begun"), ended_with_us([process], "nothing has begun"):
        process.wait(60)
    assert process.poll() == -signal.SIGKILL and gone(int((tmp_path / "pid").read_text()))


def gone(pid: int) -> bool:
    """Whether a process is over; one that was killed may take a moment."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
