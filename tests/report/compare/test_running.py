"""What is run, how it goes on, and how it ends: cells, checks before the first of them, processes, Ctrl-C, the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
import tomllib
import warnings
from pathlib import Path

import pytest
from fake_runs import fake_run

import upslope as up
from upslope.api import method
from upslope.cli import main
from upslope.cli.parsers import parsers
from upslope.errors import UserError
from upslope.report.compare import cells as cells_module
from upslope.report.compare import comparing, running
from upslope.report.compare.cells import Cell, Checked, Question, check, check_agrees, write_question
from upslope.report.compare.comparing import plan_line
from upslope.report.compare.running import Interrupted, only_one, room_for, run_cells, sort_out, steps_done, threads_of
from upslope.report.compare.sampling import counts
from upslope.report.compare.timing import Cost, whole
from upslope.report.compare.watching import Watching
from upslope.runtime.settings_flags import given_settings

SMALL = dict(steps=2, tasks_per_step=2, samples_per_task=4, warm_start=0.0, max_tokens=4, eval_problems=8, checkpoint_every=1)

WORKER = """
import json, pathlib, signal, sys, time
words = sys.argv[1:]
out = pathlib.Path(words[1] if words[0] == "resume" else words[words.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
(out / "run.toml").write_text("begun = true")
(out / "words.json").write_text(json.dumps(words))
kind = out.name.rpartition("-")[2]
if kind == "1":
    print("upslope: the disk is full.", file=sys.stderr)
    sys.exit(2)
if kind == "2":
    raise ValueError("a bug")
if kind == "3":
    import os
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "9":
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        (out / "checkpoints" / "step-000001").mkdir(parents=True)
        sys.exit(130)
(out / "metrics.jsonl").write_text('{"kind": "step", "step": 2}\\n{"kind": "evaluation", "st')
(out / "summary.json").write_text(json.dumps({"score": "accuracy", "score_after": 0.5}))
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are made by a script that takes milliseconds; what becomes of one depends on its seed."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(running, "upslope_command", lambda words: [sys.executable, str(script), *words])


def some(seeds: tuple[int, ...], methods: tuple[str, ...] = ("grpo",)) -> list[Cell]:
    question = Question(methods)
    return [Cell(name, name, "reverse", seed, {}, {"steps": 2}, question) for name in methods for seed in seeds]


def silent(total: int, workers: int = 1) -> Watching:
    return Watching(total, 0, workers, quiet=True)


# -- cells -----------------------------------------------------------------------------------------------------------------


def test_cells_are_methods_times_grid_times_tasks_times_seeds() -> None:
    question = Question(
        ("grpo", "dhpo"),
        ("reverse:length=3", "sort"),
        2,
        knobs={"dhpo:surrogate.sequence.high": 0.1},
        grid={"grpo:surrogate.high": ["0.2", "0.28"]},
        settings={"seed": 7, "steps": 5},
    )
    cells = question.cells()
    assert len(cells) == 3 * 2 * 2 and len({cell.folder for cell in cells}) == 12
    assert [cell.seed for cell in cells] == [7] * 6 + [8] * 6  # an early stop leaves fewer seeds, not fewer methods
    assert [cell.label for cell in cells[:3]] == ["grpo surrogate.high=0.2", "grpo surrogate.high=0.28", "dhpo"]
    assert cells[2].knobs == {"surrogate.sequence.high": 0.1} and cells[0].knobs == {"surrogate.high": "0.2"}
    assert question.default_folder() == Path("runs/compare-grpo-dhpo-reverse-length3-sort")


def test_the_command_of_a_cell_says_to_train_what_was_asked(tmp_path: Path) -> None:
    question = Question(("grpo",), ("sort",), 1, model="tiny:layers=1,width=32", knobs={"surrogate.high": "0.3"},
                        settings={**SMALL, "recompute": "all", "watch_kl": False, "lr": 1e-5})  # fmt: skip
    (cell,) = check(question, method).cells
    flags = parsers()[0].parse_args(cell.command(tmp_path / "cell"))
    assert (flags.method, flags.task, flags.model, flags.set) == ("grpo", "sort", "tiny:layers=1,width=32", ["surrogate.high=0.3"])
    assert flags.quiet and flags.out == str(tmp_path / "cell")
    assert given_settings(flags) == {**question.settings, "seed": 0, "eval_every": 1, "keep_checkpoints": 1}


def test_curves_have_about_ten_points_unless_asked_otherwise() -> None:
    assert check(Question(("grpo",), settings={"steps": 43}), method).cells[0].settings["eval_every"] == 4
    assert check(Question(("grpo",), settings={"steps": 43, "eval_every": 0}), method).cells[0].settings["eval_every"] == 0
    assert check(Question(("ppo",), ("gym:CartPole-v1",)), method).cells[0].settings == {
        "keep_checkpoints": 1, "steps": 20, "eval_every": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"knobs": {"surrogate.sequence.high": 0.1}}, "PessimisticClip has no knob 'sequence'"),
        ({"grid": {"surrogate.hihg": [0.1, 0.2]}}, "Did you mean 'high'"),
        ({"grid": {"surrogate.high": ["0.2", "0.2"]}}, "give each once"),
        ({"grid": {"surrogate.high": ["0.2"]}, "knobs": {"surrogate.high": 0.3}}, "in --set and in --grid"),
        ({"knobs": {"gpso:surrogate.high": 0.1}}, "Did you mean 'gspo'"),
        ({"tasks": ("revers",)}, "no task named 'revers'"),
        ({"methods": ("grpo", "gropo")}, "no method named 'gropo'"),
        ({"methods": ("grpo", "grpo")}, "given twice"),
        ({"seeds": 0}, "at least 1"),
        ({"settings": {"stepz": 3}}, "Did you mean 'steps'"),
        ({"settings": {"samples_per_task": 1}}, "samples-per-task is 1"),
        ({"model": "tinny"}, "no model 'tinny'"),
        ({"methods": ("ppo", "seed-grpo"), "tasks": ("gym:CartPole-v1",)}, "seed-grpo cannot run here.*label.answer"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(asked: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check(Question(**{"methods": ("grpo", "gspo"), **asked}), method)


# -- going on --------------------------------------------------------------------------------------------------------------


def test_a_comparison_may_grow_and_what_its_runs_share_may_not_change(tmp_path: Path) -> None:
    first = Question(("grpo",), seeds=2, settings={"steps": 5})
    write_question(tmp_path, first, first.cells())
    more = Question(("grpo", "gspo"), seeds=3, settings={"steps": 5})
    write_question(tmp_path, more, more.cells())
    assert len(tomllib.loads((tmp_path / "compare.toml").read_text())["cells"]) == 6
    write_question(tmp_path, first, first.cells())  # asking for less forgets nothing
    assert len(cells_module.read_labels(tmp_path)) == 6
    (tmp_path / first.cells()[0].folder).mkdir(parents=True)
    for other, words in (
        (Question(("grpo",), settings={"steps": 6}), "steps 5, and now it is 6"),
        (Question(("grpo",), settings={"steps": 5, "lr": 0.1}), "lr not given, and now it is 0.1"),
        (Question(("grpo",), model="smollm2", settings={"steps": 5}), "model 'tiny', and now it is 'smollm2'"),
    ):
        with pytest.raises(UserError, match=words):
            write_question(tmp_path, other, other.cells())


def test_a_question_that_came_to_no_run_may_be_asked_otherwise(tmp_path: Path) -> None:
    first = Question(("grpo", "gspo"), seeds=2, settings={"steps": 5})
    write_question(tmp_path, first, first.cells())
    other = Question(("grpo",), seeds=2, settings={"steps": 6})
    write_question(tmp_path, other, other.cells())
    kept = tomllib.loads((tmp_path / "compare.toml").read_text())
    assert kept["shared"]["settings"]["steps"] == 6 and len(kept["cells"]) == 2


@pytest.mark.parametrize(("methods", "seeds", "words"), [
    (("grpo", "gspo"), 3, "with 3 seeds nobody can win.* p would be 0.1, .*--seeds 4 are"),
    (("grpo", "gspo", "dhpo"), 4, "p would be 0.086, adjusted for 3 pairs, .*--seeds 5 are"),
    (("grpo", "gspo"), 1, "with 1 seed nobody"),
    (("grpo", "gspo"), 4, ""),
    (("grpo",), 1, ""),
])  # fmt: skip
def test_too_few_seeds_to_decide_are_told_before_the_first_run(methods: tuple[str, ...], seeds: int, words: str) -> None:
    question = Question(methods, seeds=seeds)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        comparing._warn_of_few_seeds(question, len(question.cells()))
    assert [bool(re.search(words, str(each.message))) for each in told] == ([True] if words else [])


def test_finished_cells_are_kept_if_their_settings_agree(tmp_path: Path) -> None:
    checked = check(Question(("grpo", "gspo"), seeds=1, settings={"steps": 20}), method)
    for cell in checked.cells:
        fake_run(tmp_path / "made", cell.method, 0, 0.5, eval_every=2, keep_checkpoints=1).rename(tmp_path / cell.folder)
    finished, to_run = sort_out(checked.cells, tmp_path, checked)
    assert len(finished) == 2 and not to_run
    (tmp_path / checked.cells[0].folder / "summary.json").unlink()
    assert sort_out(checked.cells, tmp_path, checked)[1] == [checked.cells[0]]
    path = tmp_path / checked.cells[0].folder
    (path / "run.toml").write_text((path / "run.toml").read_text().replace("steps = 20", "steps = 30"))
    with pytest.raises(UserError, match=r"settings\.steps 30, and now it is 20"):
        sort_out(checked.cells, tmp_path, checked)


def test_an_earlier_run_with_another_knob_is_not_taken_for_a_cell(tmp_path: Path) -> None:
    checked = check(Question(("grpo",), seeds=1, settings={"steps": 20}), method)
    path = fake_run(tmp_path, "grpo", 0, 0.5, knobs={"surrogate.high": 0.4}, eval_every=2, keep_checkpoints=1)
    with pytest.raises(UserError, match=r"method\.surrogate\.high 0\.4, and now it is 0\.2"):
        check_agrees(checked.cells[0], path, checked)


# -- processes -------------------------------------------------------------------------------------------------------------


def test_a_run_that_fails_is_reported_with_its_last_words_and_sinks_nothing(tmp_path: Path, worker: None) -> None:
    cells = some((0, 1, 2, 3, 4))
    failures = run_cells(cells, tmp_path, workers=2, threads=1, watching=silent(5, 2))
    assert sorted((each.cell.seed, each.why) for each in failures) == [
        (1, "the disk is full."),
        (2, "ValueError: a bug"),
        (3, "it was killed, most often for want of memory; fewer --jobs need less"),
    ]
    done = [cell.seed for cell in cells if (tmp_path / cell.folder / "summary.json").is_file()]
    assert done == [0, 4] and all(each.log.is_file() for each in failures)


def test_half_a_run_is_resumed_and_a_new_one_trained(tmp_path: Path, worker: None) -> None:
    cells = some((0, 4))
    (tmp_path / cells[0].folder).mkdir(parents=True)
    (tmp_path / cells[0].folder / "run.toml").write_text("begun = true")
    run_cells(cells, tmp_path, workers=1, threads=1, watching=silent(2))
    first, second = (json.loads((tmp_path / cell.folder / "words.json").read_text()) for cell in cells)
    assert first[:2] == ["resume", str(tmp_path / cells[0].folder)] and second[0] == "train"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_what_is_finished_and_ends_the_rest_in_order(tmp_path: Path, worker: None, number: int) -> None:
    cells = some((0, 9))

    def interrupt() -> None:
        until = time.time() + 20
        while time.time() < until and not (tmp_path / cells[1].folder / "words.json").exists():
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(
        Interrupted, match=r"of 2 runs 1 are finished and kept, 1 can go on from a checkpoint\. The same command goes on"
    ):
        run_cells(cells, tmp_path, workers=1, threads=1, watching=silent(2))
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(UserError, match="is in use"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass


@pytest.mark.parametrize("words", [["grpo", "gspo", "--steps", "2"], ["RUNS"]], ids=["methods", "runs"])
def test_a_folder_with_somebodys_files_is_left_alone(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    for name in ("report.html", ".lock"):
        (out / name).write_text("mine")
    runs = [str(fake_run(tmp_path, name, 0, 0.5)) for name in ("grpo", "gspo")]
    assert main(["compare", *(runs if words == ["RUNS"] else words), "--out", str(out)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in out.iterdir()} == {"report.html": "mine", ".lock": "mine"}
    assert main(["compare", *runs, "--out", ""]) == 2
    assert "--out is empty" in capsys.readouterr().err


def test_progress_is_read_from_the_end_of_a_log_that_is_being_written(tmp_path: Path) -> None:
    assert steps_done(tmp_path) == 0
    lines = "".join(json.dumps({"kind": "step", "step": step, "x": "y" * 50}) + "\n" for step in range(1, 400))
    (tmp_path / "metrics.jsonl").write_text(lines + '{"kind": "step", "st')
    assert steps_done(tmp_path) == 399


def test_lines_without_a_terminal_say_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = some((3,))
    (tmp_path / "summary.json").write_text(json.dumps({"score": "accuracy", "score_after": 0.875}))
    with Watching(4, 1, 2, terminal=False) as watching:
        watching.finished(cell, tmp_path, 60.0)
        watching.failed(cell, "why")
        assert watching.left() == pytest.approx(30.0)
    told = capsys.readouterr().err
    assert "2/4  grpo, seed 3: accuracy 0.875 in 1:00, about 1:00 left" in told and "3/4  grpo, seed 3 FAILED: why" in told


def test_the_live_view_can_be_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = some((3,))
    with Watching(4, 1, 2, 30.0, terminal=True) as watching:
        watching.going([(cell, 1)])
        watching.line("a line")
    assert "grpo, seed 3" in capsys.readouterr().err


# -- how many, how long ----------------------------------------------------------------------------------------------------


def test_as_many_runs_as_cores_and_memory_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "cores", lambda: 8)
    monkeypatch.setattr(running, "free_bytes", lambda: 4 << 30)
    assert (room_for(1, 1 << 28), room_for(1, 1 << 30), room_for(4, 1 << 20), room_for(16, 1), room_for(1, 9 << 30)) == (
        8,
        4,
        2,
        1,
        1,
    )
    assert threads_of(Question(("grpo",))) == 1 and threads_of(Question(("grpo",), model="smollm2")) == 8
    assert threads_of(Question(("grpo",), settings={"threads": 3})) == 3


def test_a_short_run_tells_how_long_a_whole_one_takes() -> None:
    # begun after 10 s, then steps of 2 s and evaluations of 1 s; the first of either is slower and is not believed
    arrived = [10.0, 15.0, 17.0, 19.0, 20.0, 22.0, 23.0]
    assert whole({"steps": 40, "eval_every": 4}, 24.0, arrived) == pytest.approx(24 + 37 * 2 + (9 - 2) * 1)
    assert whole({"steps": 40, "eval_every": 0}, 24.0, arrived) == pytest.approx(24 + 37 * 2 - 2)


def test_the_plan_says_how_many_and_about_how_long() -> None:
    question = Question(("grpo", "gspo"), ("reverse", "sort"), 3)
    cells = question.cells()
    checked = Checked(cells, {}, {}, {})
    told = plan_line(question, checked, 2, cells[2:], Cost({"reverse": 60.0, "sort": 120.0}), 2)
    assert (
        told
        == "12 runs (2 methods x 2 tasks x 3 seeds), 2 of them finished before, 2 at a time; about 8:00 (as the finished ones took)"
    )
    assert plan_line(question, checked, 12, [], Cost({}), 2).endswith("12 of them finished before: nothing to run")


# -- the command line ------------------------------------------------------------------------------------------------------


def test_finished_runs_are_compared_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        str(fake_run(tmp_path, name, seed, end + seed / 100)) for name, end in (("grpo", 0.2), ("dhpo", 0.8)) for seed in range(5)
    ]
    assert main(["compare", *runs, "--out", str(tmp_path / "answer")]) == 0
    told = capsys.readouterr().out
    assert "dhpo beats grpo (P = 1.00, interval 0.64 to 1.00)." in told and told.splitlines()[-1] == str(tmp_path / "answer")
    assert main(["compare", *runs, "--out", str(tmp_path / "answer"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["headline"] == "dhpo beats grpo."


def test_methods_and_runs_do_not_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(fake_run(tmp_path, "grpo", 0, 0.5))
    for words, told in (
        ([run, "gspo"], "'gspo' is not the folder of a run"),
        ([run, "--task", "sort"], "--task goes with methods"),
        ([run, "--steps", "5"], "--steps goes with methods"),
        ([str(tmp_path)], "neither the folder of a run"),
        (["grpo", "--grid", "surrogate.high"], "not of the form PATH=VALUE,VALUE"),
        (["grpo", "--reference", "reverse=1"], "not of the form TASK=LOW,HIGH"),
        (["grpo", "gspo", "--set", "surrogate.x=1"], "PessimisticClip has no knob 'x'"),
        (["grpo", "--stpes", "3"], "Did you mean '--steps'"),
    ):
        assert main(["compare", *words]) == 2
        assert told in capsys.readouterr().err


def test_a_dry_run_names_every_command_and_runs_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["compare", "grpo", "gspo", "--seeds", "2", "--steps", "3", "--grid", "surrogate.high=0.2,0.28", "--dry-run"]
    assert main(words) == 0
    head, *commands = capsys.readouterr().out.splitlines()
    assert head.startswith("8 runs (4 methods x 2 seeds), ") and len(commands) == 8
    assert commands[1].startswith("upslope train grpo --task reverse --model tiny --out runs/compare-grpo-gspo-reverse/")
    assert "--set surrogate.high=0.28" in commands[1] and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_comparison_from_end_to_end_grows_by_seeds_and_pairs_them(tmp_path: Path) -> None:
    asked = dict(seeds=2, model="tiny:layers=1,width=32", out=tmp_path / "answer", k=2, **SMALL)
    answer = up.compare(["grpo", "gspo"], "reverse:length=2", **asked)
    assert not answer.failures and answer.comparison.paired and len(answer.comparison.pairs) == 1
    assert {"report.html", "report.md", "comparison.json", "compare.toml"} <= {file.name for file in answer.path.iterdir()}
    loaded = [up.load(path) for paths in answer.comparison.runs.values() for path in paths]
    runs = {(run.plan.method.name, run.plan.settings.seed): run for run in loaded}
    assert len(runs) == 4
    for seed in (0, 1):
        ours, theirs = (runs[name, seed] for name in ("grpo", "gspo"))
        first = [[record["prompt"] for record in run.folder.read("samples.jsonl") if record["step"] == 1] for run in (ours, theirs)]
        assert first[0] == first[1] and first[0]  # the seed fixes the problems
        assert ours.evaluations[0] == theirs.evaluations[0]  # and the start
        assert (counts(ours.path) or {})["samples"] == 2
    prompts = {tuple(r["prompt"] for r in runs["grpo", seed].folder.read("samples.jsonl")) for seed in (0, 1)}
    assert len(prompts) == 2
    before = {path: (path / "summary.json").stat().st_mtime_ns for path in (run.path for run in runs.values())}
    grown = up.compare(["grpo", "gspo"], "reverse:length=2", **{**asked, "seeds": 3})
    assert [len(each.tasks["reverse:length=2"].seeds) for each in grown.comparison.standings] == [3, 3]
    assert before == {path: (path / "summary.json").stat().st_mtime_ns for path in before}
