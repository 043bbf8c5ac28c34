"""The report page, its charts, the words about a method and the view of a run."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from html_checker import Checker

import upslope as up
from upslope.errors import Remark
from upslope.methods import catalogue
from upslope.objective.stages import Stage
from upslope.report import describe
from upslope.report.curves import Mark, chart, number, smooth, sparkline, thin, ticks
from upslope.report.live import LiveTable, closing
from upslope.report.page import LONGEST_TEXT, page, write_report
from upslope.report.words import amount, clock
from upslope.rollout.sampled import Sampled
from upslope.run import Run
from upslope.types import SLOTS

torch.set_num_threads(1)

SMALL = dict(model="tiny:layers=1,width=32", steps=3, tasks_per_step=2, samples_per_task=4, warm_start=0, eval_problems=10)


def read(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert not checker.open
    return checker


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return up.train("dhpo", "reverse:length=2", out=tmp_path_factory.mktemp("runs") / "run", **SMALL)


# -- the page --------------------------------------------------------------------------------------------------------------


def test_the_report_of_a_run_holds_curve_rollouts_method_and_settings(run: Run) -> None:
    checker = read((run.path / "report.html").read_text())
    for heading in (
        "dhpo on reverse:length=2",
        "Learning curve",
        "Rollouts",
        "The method",
        "Settings",
        "Entropy",
        "KL to the start",
    ):
        assert heading in checker.text
    assert catalogue()["dhpo"].formula in checker.text
    sample = run.folder.read("samples.jsonl")[0]
    assert sample["prompt"] in checker.text and sample["response"] in checker.text
    titles = re.findall(r"<title>(step [^<]*)</title>", page(run))
    assert sum(title.startswith("step 2: reward") for title in titles) == 1


def test_the_report_can_neither_load_nor_run_anything(run: Run) -> None:
    checker = read(page(run))
    policies = [a["content"] for tag, a in checker.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in checker.tags}
    assert not [name for _, attributes in checker.tags for name in attributes if name.startswith("on") or name in ("src", "style")]


def test_hostile_rollouts_are_only_text(run: Run, tmp_path: Path) -> None:
    copy = _copy(run, tmp_path)
    attack = "</dd><script>alert(1)</script><img src=x onerror=alert(2)> & \" ' \ud800 \u202e"
    record = {
        "step": 1,
        "prompt": attack,
        "response": attack + "x" * LONGEST_TEXT,
        "answer": attack,
        "reward": 1.0,
        "advantage": None,
    }
    (copy.path / "samples.jsonl").write_text(json.dumps(record) + "\n")
    checker = read(write_report(copy).read_text())
    assert not {"script", "img"} & {tag for tag, _ in checker.tags}
    assert checker.text.count("<script>alert(1)</script>") == 3
    assert "characters more" in checker.text and "advantage none" in checker.text


def test_a_run_under_way_has_a_report_too(run: Run, tmp_path: Path) -> None:
    copy = _copy(run, tmp_path)
    (copy.path / "summary.json").unlink()
    (copy.path / "metrics.jsonl").write_text("".join((run.path / "metrics.jsonl").read_text().splitlines(True)[:3]))
    checker = read(page(copy))
    assert "not finished: 2 of 3 steps" in checker.text
    (copy.path / "metrics.jsonl").write_text("")
    (copy.path / "samples.jsonl").unlink()
    assert "not finished: 0 of 3 steps" in read(page(copy)).text


def test_missing_and_infinite_metrics_leave_a_gap_not_an_error(run: Run, tmp_path: Path) -> None:
    copy = _copy(run, tmp_path)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "step":
            line["entropy"] = None
            line.pop("reward")
    (copy.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = read(page(copy)).text
    assert "Entropy" not in text and "Learning curve" in text


def test_changed_slots_are_marked_against_the_parent(run: Run) -> None:
    html = page(run)
    marked = set(re.findall(r'<tr class="changed"><th>(\w+)</th>', html))
    assert marked == set(run.plan.method.diff(catalogue()["grpo"]))
    assert re.findall(r'<tr class="kept"><th>(\w+)</th>', html)


def _copy(run: Run, folder: Path) -> Run:
    shutil.copytree(run.path, folder / "copy")
    return up.load(folder / "copy")


# -- charts ----------------------------------------------------------------------------------------------------------------


def test_ticks_are_round_and_cover_the_range() -> None:
    assert ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(-3, 17, 4) == pytest.approx([0, 5, 10, 15])
    assert ticks(2, 2) == [2]


def test_numbers_have_the_digits_that_tell_something() -> None:
    assert [number(value) for value in (0, 2e-4, 1.46e-4, 0.12345, 12345.6)] == ["0", "2e-4", "1.46e-4", "0.123", "12,346"]
    assert [amount(value) for value in (893_000, 9_100, 12, 7e9)] == ["0.9 M", "9 k", "12", "7.0 G"]
    assert [clock(value) for value in (5, 65, 7380)] == ["0:05", "1:05", "2:03:00"]


def test_thinning_keeps_the_mean_and_smoothing_keeps_both_ends() -> None:
    points = [(float(x), float(x % 7)) for x in range(1000)]
    thinned = thin(points, 100)
    assert len(thinned) == 100
    assert sum(y for _, y in thinned) / 100 == pytest.approx(sum(y for _, y in points) / 1000)
    smoothed = smooth(points, 9)
    assert (smoothed[0], smoothed[-1]) == (points[0], points[-1])
    assert smoothed[10][1] == pytest.approx(sum(y for _, y in points[6:15]) / 9)


def test_a_higher_value_is_drawn_higher() -> None:
    svg = chart([(1, 0.0), (2, 1.0)], label="reward", marks=[Mark(2, 0.5, 0.4, 0.6, "here")])
    first, second = (float(pair.split(",")[1]) for pair in re.search(r'points="([^"]*)"', svg)[1].split())
    assert second < first
    assert "here" in svg and svg.count("step 2: reward 1<") == 1


@pytest.mark.parametrize("points", [[], [(3.0, 2.0)], [(1.0, 5.0), (2.0, 5.0)]])
def test_charts_of_little_are_still_charts(points: list[tuple[float, float]]) -> None:
    svg = chart(points, label="x")
    assert "nan" not in svg and "inf" not in svg
    read(svg)


def test_sparklines_rise_with_their_values_and_skip_what_is_missing() -> None:
    assert sparkline([0, None, 1, float("nan"), 2]) == sparkline([0, 1, 2])
    assert sparkline([0, 1, 2])[0] == "▁" and sparkline([0, 1, 2])[-1] == "█"
    assert sparkline([]) == "" and sparkline([2, 2]) == "▁▁"
    assert len(sparkline(range(500), 20)) == 20


# -- methods in words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", catalogue())
def test_every_method_can_be_shown(name: str) -> None:
    method = catalogue()[name]
    text, flat = describe.show_text(method), describe.show_text(method, flat=True)
    assert method.paper.title in text and method.formula in text
    for slot, (old, new) in describe.changes(method).items():
        assert re.search(rf"^{slot} +{re.escape(old)} +->  {re.escape(new)}$", text, re.M)
    for path, part in method.parts():
        assert re.search(rf"^{re.escape(path)}  {type(part).__name__}, ", flat, re.M)
    for text_of_math in (":math:", "``", ".. math"):
        assert text_of_math not in flat
    record = json.loads(json.dumps(describe.show_record(method, flat=True)))
    assert set(record["slots"]) <= set(SLOTS) and record["parts"]


def test_parts_are_shown_in_the_order_in_which_they_act() -> None:
    flat = describe.show_text(catalogue()["dapo"], flat=True)
    places = [flat.index(f"\n{path}  ") for path, _ in catalogue()["dapo"].parts()]
    assert places == sorted(places)


def test_the_docstring_of_a_part_gives_meaning_formula_and_knobs() -> None:
    kind = type(catalogue()["dapo"].surrogate)
    about, _, meanings = describe.read_docstring(kind)
    assert about.startswith("The worse of the ratio and the clipped ratio (PPO)")
    assert meanings["low"] == meanings["high"] and meanings["low"].startswith("how far the ratio may move")
    assert "Infinite: none." in meanings["dual"]
    _, formulas, _ = describe.read_docstring(type(catalogue()["grpo"].advantage))
    assert formulas == ["A_i = (r_i - r̄_(g(i)))/(s_(g(i)) + ε)"]


# -- the view of a run -----------------------------------------------------------------------------------------------------


def test_plain_lines_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LiveTable() as watcher:
        up.train("grpo", "reverse:length=2", out=tmp_path / "run", watcher=watcher, **{**SMALL, "steps": 20, "eval_every": 10})
    told = capsys.readouterr()
    steps = re.findall(r"^step +(\d+)/20  reward \d", told.err, re.M)
    assert steps == [str(step) for step in range(2, 21, 2)]
    assert told.err.startswith("grpo on reverse:length=2, tiny:layers=1,width=32 (")
    assert "after step 10" in told.err and "KL 0." in told.err
    assert "\x1b" not in told.err + told.out
    assert re.search(r"^accuracy 0\.\d\d \[.*\] -> .* on 10 problems it never saw", told.out)
    assert str(tmp_path / "run" / "report.html") in told.out


def test_stages_are_named_where_they_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = {slot: getattr(catalogue()["dr-grpo"], slot) for slot in ("advantage", "ratio", "surrogate", "aggregate")}
    stages = tuple(Stage(name=name, share=0.25, rollout=Sampled(), **taken) for name in ("first", "second"))
    with LiveTable() as watcher:
        method = catalogue()["dr-grpo"].derive(name="mine", stages=stages)
        made = up.train(method, "reverse:length=2", out=tmp_path / "run", watcher=watcher, **{**SMALL, "steps": 4})
    said = re.findall(r"^step (\d): (.*)$", capsys.readouterr().err, re.M)
    assert said == [("1", "stage 1 of 2, first"), ("2", "stage 2 of 2, second"), ("3", "mine itself")]
    drawn = write_report(made).read_text()
    assert re.findall(r'class="break" x1="[\d.]+" x2="[\d.]+" y1="10" y2="236"><title>from step (\d) on: ([^<]*)<', drawn) == [
        ("2", "stage 2 of 2, second"),
        ("3", "mine itself"),
    ]


def test_a_terminal_gets_a_live_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with LiveTable(terminal=True) as watcher:
        up.train("grpo", "reverse:length=2", out=tmp_path / "run", watcher=watcher, **SMALL)
    told = capsys.readouterr().err
    last = told[told.rindex("step 3 of 3") :]
    for name in ("reward", "entropy", "KL to the start", "tokens/s"):
        assert name in last
    assert told.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_run_on_pairs_shows_margin_and_both_likelihoods(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = LiveTable(terminal=False)
    watcher.steps = 2
    watcher.stepped(1, {"margin": 0.5, "preferred": 0.75, "logp_chosen": -18.0, "logp_rejected": -19.0, "kl_start": 0.0})
    watcher.stepped(2, {"margin": 1.5, "preferred": 0.25, "logp_chosen": -20.0, "logp_rejected": -22.0, "kl_start": 0.0})
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "step 2/2  preferred 0.50  margin 1.00  logp chosen -19.00  rejected -20.50  KL 0.000"


def test_a_view_survives_metrics_it_does_not_know_and_misses_none(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    watcher = LiveTable()
    watcher.steps = 1
    watcher.stepped(1, {"surprise": 1.0, "reward": float("nan")})
    assert capsys.readouterr().err == "step 1/1\n"
    quiet = LiveTable(quiet=True)
    quiet.steps = 1
    quiet.stepped(1, {"reward": 1.0})
    assert capsys.readouterr().err == ""


def test_means_are_called_means_and_go_on_with_a_resumed_run(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    watcher = LiveTable(terminal=False)
    watcher.run, watcher.steps = run, 5
    for step in (4, 5):
        watcher.stepped(step, {"reward": 9.0, "seconds": 0.1})
    before = [record["reward"] for record in run.metrics]
    assert watcher.history["reward"] == [*before, 9.0, 9.0] and len(before) == 3 and "step" not in watcher.history
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"step 4/5  reward {(sum(before) + 9) / 4:.2f}") and first.endswith("(means of the last 8 steps)")
    assert second.startswith("step 5/5") and "means" not in second


def test_the_end_names_commands_that_work(run: Run) -> None:
    named = re.findall(r"upslope (\w+) (\S+)", "\n".join(closing(run, run.summary)))
    assert {command for command, _ in named} == {"try", "eval", "show", "board"}
    for command, word in named:
        assert (word in catalogue()) if command == "show" else Path(word) == (run.path.parent if command == "board" else run.path)
    mine = Run(run.folder, dataclasses.replace(run.plan, method=run.plan.method.derive(name="mine")))
    assert "upslope show" not in "\n".join(closing(mine, run.summary))


@pytest.mark.parametrize(("earned", "said"), [(0.0, "never earned"), (1.0, "always earned"), (0.5, "never differs")])
def test_a_run_that_learns_nothing_says_so_once(run: Run, capsys: pytest.CaptureFixture[str], earned: float, said: str) -> None:
    watcher = LiveTable()
    watcher.steps = 100
    silent = {"reward": earned, "constant_groups": 1.0, "learning": 0.0}
    for step in range(1, 5):
        watcher.stepped(step, silent)
    watcher.stepped(5, {"reward": 0.3, "constant_groups": 0.9, "learning": 0.1})
    for step in range(6, 10):
        watcher.stepped(step, silent)
    assert "note" not in capsys.readouterr().err, "four steps, a signal, four steps"
    for step in range(10, 20):
        watcher.stepped(step, silent)
    told = capsys.readouterr().err
    assert told.count("note: nothing was learned in the last 5 steps") == 1 and said in told


def test_a_warm_start_that_falls_short_says_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    watcher = LiveTable()
    watcher.warming(100, 0.12, 0.4)
    watcher.evaluated(0, run.evaluations[0])
    assert "note: the warm start ended after 100 steps at accuracy 0.12; 0.40 was wanted." in capsys.readouterr().err
    watcher.warming(100, 0.41, 0.4)
    watcher.evaluated(0, run.evaluations[0])
    assert "note" not in capsys.readouterr().err


def test_the_live_view_shows_remarks_as_notes_and_leaves_other_warnings_alone(capsys):
    with LiveTable(terminal=False):
        warnings.warn(Remark("the pole is on fire"), stacklevel=1)
        with pytest.warns(DeprecationWarning, match="old"):
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == ["note: the pole is on fire"]
