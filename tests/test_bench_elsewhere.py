"""A row that was measured on two processors tells of both."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import machine
import report
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
