"""The page of a run's workers in a real browser: who is busy, each process, ages, faults; and faults as marks on every curve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import board_runs
import pytest
from board_browser import NEEDS_CHROMIUM, Page, expect, picture

import upslope as up

pytest_plugins = ["board_fixtures"]
pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]

WORKERS = [
    {"number": 0, "pid": 4711, "doing": "sampling", "version": 3, "rows": 96, "seconds": 12.0, "lost": 1},
    {"number": 1, "pid": 4712, "doing": board_runs.HOSTILE[0], "version": None, "rows": 0, "seconds": 0.0, "lost": 0},
]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that samples a step ahead, as if by workers of which one had died in step 3; and one that does all itself."""
    root = tmp_path_factory.mktemp("workers") / "runs"
    (root.parent / "reward.py").write_text(board_runs.REWARD)
    sizes = {**board_runs.SMALL, "steps": 4, "eval_every": 0, "reward": f"{root.parent / 'reward.py'}:score"}
    up.train("asyncflow", "reverse:length=2", max_staleness=1, out=root / "apart", **sizes)
    up.train("grpo", "reverse:length=2", out=root / "alone", **sizes)
    log = root / "apart" / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "step":
            line |= {"worker_busy": 0.75, "seconds": 2.0, "seconds_sampling": 0.5}
            line |= {"fault_worker_died": 1.0} if line["step"] == 3 else {}
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = {"workers": WORKERS, "waiting_for_workers": 2, "faults": {"worker_died": 1, board_runs.HOSTILE[1]: 2}}
    (root / "apart" / "workers.json").write_text(json.dumps(told))
    return root


@pytest.fixture(scope="module")
def at(apart: Path) -> Iterator[str]:
    with board_runs.board(apart) as address:
        yield address


def test_bars_say_who_waits_and_each_process_has_a_line(page: Page, at: str) -> None:
    page.goto(at + "#/workers?run=apart")
    expect(page.get_by_role("heading", name="Who worked during step 4")).to_be_visible()
    expect(page.get_by_role("img", name="sampling: 75% of the step")).to_be_visible()
    expect(page.get_by_role("img", name="learning: 75% of the step")).to_be_visible()
    expect(page.locator(".busy-bar")).to_have_count(2)
    rows = page.locator(".workers tbody tr")
    expect(rows).to_have_count(2)
    cells = ["0 (4711)", "sampling", "sampling", "3", "96", "8", "1 time"]
    assert rows.first.locator("td").all_inner_texts() == cells
    expect(rows.nth(1)).to_contain_text(board_runs.HOSTILE[0])
    expect(page.locator(".workers .card .chip").first).to_have_text("worker died 1")
    expect(page.locator("[data-chart=Age] .chip")).to_have_text(["age share 0", "age share 1"])
    expect(page.locator("[data-chart=Faults] .uplot")).to_have_count(1)
    assert page.locator(".workers img, .workers script, .workers b").count() == 0
    picture(page, "workers")


def test_a_fault_is_a_mark_on_every_curve(page: Page, at: str) -> None:
    page.goto(at + "#/curves?run=apart&key=reward&key=entropy")
    expect(page.locator(".uplot")).to_have_count(2)
    expect(page.locator(".chart .unseen li", has_text="worker died at step 3")).to_have_count(2)
    picture(page, "faults")
    page.goto(at + "#/curves?run=alone&key=reward")
    expect(page.locator(".chart .unseen li")).to_have_count(1)


def test_a_run_in_one_process_says_so(page: Page, at: str) -> None:
    page.goto(at + "#/workers?run=alone")
    expect(page.get_by_role("heading", name="One process does it all")).to_be_visible()
    expect(page.locator(".busy-bar")).to_have_count(2)
    page.keyboard.press("5")
    expect(page.get_by_role("heading", name="Nothing was chosen")).to_be_visible()
