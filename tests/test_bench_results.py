"""How windows are taken, and what of them is kept and told: rows measured on two processors, apart, ahead, with early ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import machine
import pytest
import report
import side_by_side
import sides
from side_by_side import save


def result(cpu: str, ratio: float, date: str) -> dict[str, Any]:
    """Of a row whose peer takes a second."""
    side = {"label": "1 thread", "seconds": 1 / ratio}
    return {
        "row": "grpo_short", "work": "a nap", "unit": "s a nap", "goal": "at least 2 times TRL is wanted", "wanted": 2.0,
        "least": None, "most_memory": None, "ours": 1 / ratio, "ours_low": 0.9 / ratio, "ours_high": 1.1 / ratio,
        "ours_setting": "1 thread", "ours_name": "ours", "peer": 1.0, "peer_low": 0.9, "peer_high": 1.1,
        "peer_setting": "1 thread", "peer_name": "peer", "ratio": ratio, "ratio_low": ratio - 0.1, "ratio_high": ratio + 0.1,
        "memory_ours": 1.0, "memory_peer": 2.0, "idle": True, "settings": {"ours": [side], "peer": [side]},
        "counts": {"ours": {"naps": 3.0}, "peer": {"naps": 3.0}}, "checked": {"exact": ["naps"], "near": {}},
        "machine": machine.describe() | {"cpu": cpu}, "versions": {}, "date": date, "command": "python bench/grpo_short.py",
    }  # fmt: skip


def test_what_came_out_on_another_processor_is_kept(tmp_path: Path) -> None:
    for found in (
        result("Intel(R) Xeon(R) Processor @ 2.50GHz", 1.3, "2026-01-01"),
        result("Neoverse-N1", 2.5, "2026-01-02"),
        result("Zen", 1.1, "2026-01-03"),
        result("Neoverse-N1", 2.25, "2026-01-04"),  # measured again: the older one of this processor is gone
    ):
        save(found, tmp_path)
    told = json.loads((tmp_path / "grpo_short.json").read_text())
    assert told["ratio"] == 2.25
    assert [(each["machine"]["cpu"], each["ratio"]) for each in told["elsewhere"]] == [
        ("Zen", 1.1),
        ("Intel(R) Xeon(R) Processor @ 2.50GHz", 1.3),
    ]
    report.write(report.load(tmp_path), tmp_path)
    page = (tmp_path / "performance.md").read_text()
    assert "**2.25** (2.15 to 2.35); 1.10 on Zen; 1.30 on Intel Xeon |" in page
    assert "GRPO step, short prompts: on Intel Xeon 1.30 times as fast. Not reached there." in page
    assert "2026-01-01: 0.769 against 1 s a nap, 1.30 times as fast (1.20 to 1.40)" in page


def test_a_result_without_a_peer_leaves_nothing(tmp_path: Path) -> None:
    save(result("Zen", 1.1, "2026-01-03") | {"peer": None, "ratio": None}, tmp_path)
    save(result("Neoverse-N1", 2.5, "2026-01-04"), tmp_path)
    assert "elsewhere" not in json.loads((tmp_path / "grpo_short.json").read_text())


# -- windows -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_turns", [True, False])
def test_sides_take_turns_or_one_ends_before_the_other_begins(in_turns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Noted:
        """A process that notes when it begins, works and ends."""

        def __init__(self, role: str, side: sides.Side, setting: sides.Setting, row: sides.Row):
            self.role, self.process = role, type("Process", (), {"pid": None})
            events.append(f"{role} begins")

        def set_up(self) -> None:
            pass

        def window(self, units: int, measured: bool) -> None:
            events.append(f"{self.role} works")

        def close(self) -> None:
            events.append(f"{self.role} ends")

    monkeypatch.setattr(side_by_side, "Worker", Noted)
    monkeypatch.setattr(side_by_side, "result", lambda row, workers, **_: {"by": [worker.role for worker in workers]})
    made = sides.Side("a side", print, (sides.Setting("only"),))
    row = sides.Row("naps", "a nap", "s", made, made, None, window=1, exact=(), in_turns=in_turns)
    assert side_by_side.measure(row, windows=1, warmup=1, settle=0.0, listen=0.0) == {"by": ["ours", "peer"]}
    apart = [f"{role} {does}" for role in ("ours", "peer") for does in ("begins", "works", "works", "ends")]
    turns = ["ours begins", "peer begins", "ours works", "peer works", "peer works", "ours works", "ours ends", "peer ends"]
    assert events == (turns if in_turns else apart)


def test_a_row_says_if_its_sides_did_not_take_turns(tmp_path: Path) -> None:
    found = result("Zen", 2.5, "2026-01-03")
    told = "- one side after the other, each with the machine to itself"
    assert told in report._row_section(found | {"in_turns": False}) and told not in report._row_section(found | {"in_turns": True})


class Answers:
    """The harness's end of a pipe: it wants two windows of two units, and then no more."""

    def __init__(self) -> None:
        self.wanted: list[int | None] = [2, 2, None]
        self.told: list[dict[str, Any]] = []

    def send(self, told: dict[str, Any]) -> None:
        self.told.append(told)

    def recv(self) -> int | None:
        return self.wanted.pop(0)


def test_what_is_done_before_a_window_begins_again_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(sides.time, "perf_counter", lambda: now[0])
    pipe = Answers()
    clock, begins = sides.Clock(pipe, "cpu"), True
    clock.ready()
    with pytest.raises(sides.Finished):
        while True:
            if begins:
                now[0] += 100.0  # a step whose rows lay ready
                clock.begin_again()
            now[0] += 1.0
            begins = clock.tick(steps=1)
    assert [(each["seconds"], each["counts"]) for each in pipe.told[1:]] == [(2.0, {"steps": 2.0}), (2.0, {"steps": 2.0})]


def test_answers_that_end_early_are_compared_with_those_that_do_not() -> None:
    point = {"row": "1.5B:16x8x512", "sampling_tokens_s": 50_000.0, "of_the_bytes_limit": 0.38, "learning_s": 1.0, "mfu": 0.5,
             "mfu_computed": 0.4, "reserved_gib": 40.0, "estimated_gib": 41.0}  # fmt: skip
    ends = {"row": "1.5B:64x8x2048+ends", "sampling_tokens_s": 45_000.0, "reserved_gib": 42.0}
    whole = {"points": [point], "machine": {"card": "a card", "torch": "2"}, "command": "c", "date": "d"}
    page = report._sizes_section(whole | {"early_ends": [ends]})
    assert "| 1.5B:64x8x2048+ends | 45,000 | 90% of `1.5B:16x8x512` | 80% |" in page and "`+ends` end after" in page
    assert "+ends" not in report._sizes_section(whole)
    early = [ends | {"row": "1.5B:8x8x9+early"}, ends | {"row": "1.5B:8x8x9+early+stretches", "sampling_tokens_s": 30_000.0}]
    page = report._sizes_section(whole | {"early_ends": early})
    assert "| 1.5B:8x8x9+early | 45,000 | 150% of `1.5B:8x8x9+early+stretches` |  |" in page
    assert "| 1.5B:8x8x9+early+stretches | 30,000 |  |  |" in page and "geometric mean" in page
    assert "| 1.5B:64x8x2048+ends | 45,000 |  |  |" in report._sizes_section(whole | {"points": [], "early_ends": [ends]})


def test_of_a_large_run_what_is_neither_steps_nor_disk_is_told():
    parts = {"importing": 4.0, "first step": 8.0, "other steps": 7.0, "ending": 21.0}
    run = {"seconds": 40.0, "parts": parts, "written_gb": 20.0}
    found = {"about": "Four steps.", "machine": machine.describe(), "disk_gb_per_second": 2.0, "runs": [run], "command": "it"}
    page = report._large_run_section(found)
    assert "Of 40.0 s its steps take 15.0; 20.0 GB are written, which takes 10.0 at the 2.00 GB/s" in page
    assert "The other **15.0 s** are to be at most 25." in page and "| ending | 21.0 |" in page and "| all | **40.0** |" in page
