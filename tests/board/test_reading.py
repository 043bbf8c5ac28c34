"""The board reads logs that grow, are cut, rewound, broken or very long, and says of a run what its files say."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from board_folders import append, client, evaluation, step, write_run

from upslope.board import log_table
from upslope.board.curves import Curve, band, curve_record, evaluations, plain, thinned
from upslope.board.index import Gone, Runs
from upslope.board.log_table import Columns, LogTable
from upslope.board.logs import Logs
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.statistics import bootstrap_interval, interquartile_mean


def read(table: LogTable, path: Path, **options: float) -> LogTable:
    with path.open("rb") as file:
        table.read_on(file, **options)
    return table


def rewards(table: LogTable) -> list[float]:
    column = table.steps.column("reward")
    return [] if column is None else [round(value, 5) for value in column.tolist()]


# -- metrics.jsonl ---------------------------------------------------------------------------------------------------------


def test_a_growing_log_is_read_on_and_a_half_written_line_waited_for(tmp_path: Path):
    log, table = tmp_path / "metrics.jsonl", LogTable()
    append(tmp_path, evaluation(0, 0.1), step(1), step(2), '{"kind": "step", "step": 3, "rew')
    assert rewards(read(table, log)) == [0.1, 0.2]
    taken = table.offset
    append(tmp_path, 'ard": 0.3}\n', step(4))
    assert rewards(read(table, log)) == [0.1, 0.2, 0.3, 0.4] and table.offset > taken
    assert table.bad_lines == 0 and table.evaluations.rows == 1
    before = table.offset
    read(table, log)
    assert table.offset == before and table.steps.rows == 4, "what was read is not read again"


def test_only_what_is_new_is_read(tmp_path: Path):
    log, table = tmp_path / "metrics.jsonl", LogTable()
    append(tmp_path, *(step(number) for number in range(1, 2001)))
    read(table, log)
    append(tmp_path, step(2001))

    class Counting:
        def __init__(self, file):
            self.file, self.count = file, 0

        def read(self, size: int) -> bytes:
            found = self.file.read(size)
            self.count += len(found)
            return found

        def __getattr__(self, name):
            return getattr(self.file, name)

    with log.open("rb") as file:
        counting = Counting(file)
        table.read_on(counting)  # type: ignore[arg-type]
    assert table.steps.rows == 2001 and counting.count < 2000


def test_lines_that_are_no_json_objects_are_passed_over_and_counted(tmp_path: Path):
    append(tmp_path, step(1), "{broken\n", "[1, 2]\n", "7\n", "\n", '{"kind": "step", "step": 2, "reward": 0.2},{}\n', step(3))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "step", "reward": "\xff"}\n' + b"[" * 100_000 + b"\n")
    append(tmp_path, step(4))
    table = read(LogTable(), tmp_path / "metrics.jsonl")
    assert rewards(table) == [0.1, 0.3, 0.4] and table.bad_lines == 6


@pytest.mark.parametrize("length", [10, log_table.BLOCK - 20, log_table.BLOCK + 5, 3 * log_table.BLOCK])
def test_a_line_of_any_length_neither_stops_the_reader_nor_fills_the_memory(tmp_path: Path, length: int):
    append(tmp_path, step(1), json.dumps({"kind": "step", "step": 2, "text": "x" * length}) + "\n", step(3))
    table = read(LogTable(), tmp_path / "metrics.jsonl")
    kept = length < log_table.BLOCK - 100
    assert table.steps.column("step").tolist() == ([1, 2, 3] if kept else [1, 3]) and table.bad_lines == (0 if kept else 1)


def test_a_rewound_log_is_read_anew(tmp_path: Path):
    folder = RunFolder(tmp_path)
    for number in range(1, 6):
        folder.append("metrics.jsonl", step(number))
    log, table = tmp_path / "metrics.jsonl", LogTable()
    read(table, log)
    folder.rewind({"metrics.jsonl": 2})
    assert rewards(read(table, log)) == [0.1, 0.2]
    for number in range(3, 9):  # past the place that had been reached, with other numbers
        folder.append("metrics.jsonl", step(number, reward=9.0))
    folder.rewind({"metrics.jsonl": 4})
    for number in range(5, 9):
        folder.append("metrics.jsonl", step(number, reward=8.0))
    assert rewards(read(table, log)) == [0.1, 0.2, 9, 9, 8, 8, 8, 8]
    assert table.steps.axis("tokens").tolist() == [100.0 * number for number in range(1, 9)], "totals begin anew too"


def test_a_log_written_over_in_place_is_read_anew(tmp_path: Path):
    log, table = tmp_path / "metrics.jsonl", LogTable()
    append(tmp_path, step(1), step(2))
    read(table, log)
    with log.open("r+") as file:  # the same file, and longer than before
        file.write("".join(json.dumps(step(number, reward=5.0)) + "\n" for number in range(1, 5)))
    assert rewards(read(table, log)) == [5, 5, 5, 5]


def test_columns_that_come_late_or_hold_no_numbers_are_gaps(tmp_path: Path):
    append(tmp_path, step(1), step(2, late=1.0, reward=None), step(3, late="x", reward=True), step(4, late=[1], reward=10**400))
    append(tmp_path, '{"kind": "step", "step": 5, "reward": 1e300, "late": Infinity}\n', {"kind": "other", "step": 9})
    table = read(LogTable(), tmp_path / "metrics.jsonl")
    late = table.steps.column("late")
    assert plain(late) == [None, 1, None, None, None] and plain(table.steps.column("reward")) == [0.1, None, 1, None, None]
    assert "step" not in table.steps.names and "late" in table.steps.names and not any("Σ" in name for name in table.steps.names)


def test_reading_stops_when_time_is_up_and_goes_on_later(tmp_path: Path):
    append(tmp_path, *(step(number, text="x" * 1000) for number in range(1, 3001)))
    table = LogTable()
    read(table, tmp_path / "metrics.jsonl", seconds=0)
    assert table.behind and table.steps.rows == 0
    assert curve_record("a", table, "reward", "step", 10, (None, None))["read"] < 1
    read(table, tmp_path / "metrics.jsonl")
    assert not table.behind and table.steps.rows == 3000
    assert "read" not in curve_record("a", table, "reward", "step", 10, (None, None))


def test_a_log_too_long_for_memory_keeps_its_spikes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_table, "MOST_CELLS", 4000)
    columns = Columns()
    for begin in range(1, 20_001, 100):
        columns.add([step(number, reward=100.0 if number == 7_777 else -100.0 if number == 13 else 0.5)
                     for number in range(begin, begin + 100)])  # fmt: skip
    assert columns.rows * 8 < 4000 + 8 * 100
    reward, steps, tokens = columns.column("reward"), columns.column("step"), columns.axis("tokens")
    assert reward.max() == 100 and reward.min() == -100 and reward[-1] == 0.5
    assert (np.diff(steps) > 0).all() and (np.diff(tokens) > 0).all() and tokens[-1] == 20_000 * 100
    assert abs(steps[int(reward.argmax())] - 7_777) < 20_000 / columns.rows * 4


def test_a_line_with_endlessly_many_names_does_not_fill_the_memory(tmp_path: Path):
    append(tmp_path, {"kind": "step", "step": 1, **{f"m{number}": 1.0 for number in range(5000)}}, step(2))
    assert len(read(LogTable(), tmp_path / "metrics.jsonl").steps.names) <= log_table.MOST_COLUMNS


def test_nobody_waits_for_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("upslope.board.logs.AT_ONCE", 50_000)
    run = write_run(tmp_path / "a", steps=1, finished=False)
    append(run, *(step(number, text="x" * 2000) for number in range(2, 4001)), evaluation(4000, 0.9))
    runs = Runs(tmp_path)
    logs, listed = Logs(runs), runs.listing()
    held = threading.Event()
    monkeypatch.setattr(Logs, "_read_all", _after(held, Logs._read_all))
    with logs.table("a") as table:
        quick = curve_record("a", table, "reward", "samples", 5000, (None, None))
    assert quick["read"] < 1 and 500 < len(quick["x"]) <= log_table.SAMPLES
    assert quick["x"] == pytest.approx([4 * 10 * reward for reward in quick["y"]]), "the totals are those of the steps between too"
    assert quick["x"][0] < 100 and quick["x"][-1] > 4 * 3990
    assert runs.listing(listed["revision"])["runs"] == []
    held.set()
    until = time.monotonic() + 20
    while not (told := runs.listing(listed["revision"])["runs"]):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert told[0]["id"] == "a", "the page learns that it can ask again"
    with logs.table("a") as table:
        whole = curve_record("a", table, "reward", "samples", 5000, (None, None))
    assert "read" not in whole and whole["x"] == [4 * number for number in range(1, 4001)]
    append(run, step(4001))
    with logs.table("a") as table:
        assert not table.behind and table.steps.rows == 4001, "what is new is little, and read at once"


def _after(event: threading.Event, act: Callable[..., None]) -> Callable[..., None]:
    def waiting(*arguments: object) -> None:
        event.wait(20)
        act(*arguments)

    return waiting


def test_a_long_log_deleted_while_it_is_read_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("upslope.board.logs.AT_ONCE", 10)
    run = write_run(tmp_path / "a", steps=50)
    held = threading.Event()
    monkeypatch.setattr(Logs, "_read_all", _after(held, Logs._read_all))
    logs = Logs(Runs(tmp_path))
    with logs.table("a") as table:
        assert table.behind
    shutil.rmtree(run)
    held.set()
    until = time.monotonic() + 20
    while logs._logs["a"].preview is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(Gone), logs.table("a"):
        pass


# -- curves ----------------------------------------------------------------------------------------------------------------


def test_thinning_keeps_the_extremes_and_never_exceeds_the_points():
    rng = np.random.default_rng(0)
    x, y = np.arange(10_007, dtype=float), rng.normal(size=10_007)
    y[5000], y[100:200] = 50, np.nan
    found = thinned(x, y, 300)
    assert len(found.x) == len(found.y) == 300 and np.nanmax(found.high) == 50 and np.nanmin(found.low) == np.nanmin(y)
    assert (found.low <= found.y + 1e-12)[np.isfinite(found.y)].all() and (np.diff(found.x) > 0).all()
    cuts = np.linspace(0, len(x), 301).astype(int)
    assert found.y[7] == pytest.approx(np.nanmean(y[cuts[7] : cuts[8]]))
    whole = thinned(x[:300], y[:300], 300)
    assert whole.low is None and len(whole.x) == 300


def test_axes_are_totals_and_a_window_is_a_window(tmp_path: Path):
    append(tmp_path, evaluation(0, 0.1), *(step(number) for number in range(1, 11)), evaluation(5, 0.5), evaluation(10, 0.9))
    table = read(LogTable(), tmp_path / "metrics.jsonl")
    assert curve_record("a", table, "reward", "samples", 100, (8, 16))["x"] == [8, 12, 16]
    assert curve_record("a", table, "reward", "seconds", 100, (None, None))["x"][-1] == 5
    assert evaluations(table, "score", "tokens")["x"] == [0, 500, 1000]
    scores = curve_record("a", table, "score", "step", 100, (None, None))
    assert scores["x"] == [] and scores["evaluation"]["y"] == [0.1, 0.5, 0.9] and scores["evaluation"]["high"] == [0.2, 0.6, 1]
    assert curve_record("a", table, "nothing", "step", 100, (None, None))["y"] == []


def test_a_run_that_did_not_count_an_axis_has_no_curve_over_it(tmp_path: Path):
    append(tmp_path, {"kind": "step", "step": 1, "reward": 1.0}, evaluation(1, 0.5))
    table = read(LogTable(), tmp_path / "metrics.jsonl")
    assert curve_record("a", table, "reward", "tokens", 9, (None, None))["x"] == []
    assert evaluations(table, "score", "tokens")["x"] == []


@pytest.mark.parametrize(("seeds", "statistic"), [(3, np.mean), (6, interquartile_mean)])
def test_a_band_is_the_bootstrap_interval_of_its_seeds(seeds: int, statistic):
    values = np.random.default_rng(1).normal(size=(seeds, 2))
    x = np.arange(2.0)
    found = band([Curve(x, row) for row in values], 100)
    assert found["x"] == [0, 1]
    for point in range(2):
        low, high = bootstrap_interval(values[:, point], statistic)
        assert found["mean"][point] == pytest.approx(statistic(values[:, point]), abs=1e-6)
        width = high - low
        assert found["low"][point] == pytest.approx(low, abs=0.1 * width)
        assert found["high"][point] == pytest.approx(high, abs=0.1 * width)


def test_a_band_of_seeds_of_different_lengths_uses_those_that_are_there():
    short, long = Curve(np.arange(3.0), np.zeros(3)), Curve(np.arange(5.0), np.ones(5))
    found = band([short, long], 100)
    assert found["mean"] == [0.5, 0.5, 0.5, 1, 1] and found["low"] == [0, 0, 0, None, None]
    assert band([Curve(np.arange(500.0), np.ones(500))] * 2, 50)["mean"] == [1] * 50
    assert band([Curve(np.arange(3.0), np.full(3, np.nan))], 50)["x"] == []


# -- logs in memory ---------------------------------------------------------------------------------------------------------


def test_a_run_deleted_while_watched_is_gone(tmp_path: Path):
    run = write_run(tmp_path / "a")
    runs = Runs(tmp_path)
    logs = Logs(runs)
    with logs.table("a") as table:
        assert table.steps.rows == 10
    shutil.rmtree(run)
    with pytest.raises(Gone), logs.table("a"):
        pass


def test_logs_that_nobody_looks_at_make_room(tmp_path: Path):
    for name in "abc":
        write_run(tmp_path / name, steps=200)
    logs = Logs(Runs(tmp_path), most_bytes=1)
    for name in "abcab":
        with logs.table(name) as table:
            assert table.steps.rows == 200
    assert list(logs._logs) == ["b"]


def test_a_zoomed_band_is_as_fine_as_what_was_logged_and_reaches_the_edges(tmp_path: Path):
    for seed in (0, 1):
        run = write_run(tmp_path / f"seed-{seed}", steps=1, seed=seed)
        append(run, *(step(number, reward=number + seed) for number in range(2, 5001)))
    ask = {"run": ["seed-0", "seed-1"], "key": "reward", "points": 50}
    (whole,) = client(tmp_path).get("/api/bands", params=ask).json()["bands"]
    (zoomed,) = client(tmp_path).get("/api/bands", params=ask | {"from": 1000.5, "to": 1020.5}).json()["bands"]
    assert len(whole["x"]) == 50 and zoomed["x"] == [*range(1000, 1022)]
    assert zoomed["mean"] == [number + 0.5 for number in range(1000, 1022)]


def test_many_runs_at_once_are_previewed_beyond_what_one_answer_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(3):
        run = write_run(tmp_path / f"run-{number}", steps=1)
        append(run, *(step(each) for each in range(2, 3001)))
    monkeypatch.setattr("upslope.board.logs.AT_ONCE", int((tmp_path / "run-0" / "metrics.jsonl").stat().st_size * 1.5))
    board = client(tmp_path)
    first = board.get("/api/curves", params={"run": ["run-0", "run-1", "run-2"], "key": "reward"}).json()["curves"]
    assert ["read" in each for each in first] == [False, True, True] and all(each["x"][-1] > 2900 for each in first)
    for _ in range(200):
        again = board.get("/api/curves", params={"run": ["run-0", "run-1", "run-2"], "key": "reward"}).json()["curves"]
        if not any("read" in each for each in again):
            break
        time.sleep(0.05)
    assert [len(each["x"]) for each in again] == [1000] * 3
