"""The page stands still for nobody: neither for a token of megabytes nor for an answer of many thousands."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import board_runs
import pytest
from board_browser import NEEDS_CHROMIUM, Page, expect

pytest_plugins = ["board_fixtures"]
pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
# The longest time in which the page did not come to anything else.
LONGEST_TASK = """() => new Promise((done) => {
  const found = [];
  const watcher = new PerformanceObserver((list) => found.push(...list.getEntries().map((each) => each.duration)));
  watcher.observe({ type: "longtask", buffered: true });
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(Math.max(0, ...found)), 200)));
})"""


def rewritten(run: Path, change: Callable[[list[dict]], None]) -> int:
    """Changes the groups of the last recorded step; gives the row of its first sample."""
    last = sorted((run / "rollouts").glob("step-*.json.gz"))[-1]
    record = board_runs.read_step(last)
    change(record["groups"])
    last.write_bytes(gzip.compress(json.dumps(record).encode(), 1))
    row: int = record["groups"][0]["samples"][0]["row"]
    return row


def test_a_token_of_ten_megabytes_is_cut(page: Page, runs: Path, tmp_path: Path) -> None:
    run = board_runs.copy_run(runs / "dhpo-0", tmp_path / "runs" / "long")

    def change(groups: list[dict]) -> None:
        groups[0]["prompt"] = " \u202e" * 500_000
        groups[0]["samples"][0]["pieces"][0] = " \n" * 5_000_000

    row = rewritten(run, change)
    with board_runs.board(tmp_path / "runs") as at:
        page.goto(at + f"#/rollouts?run=long&step=9&row={row}")
        token = page.locator(".sample .token").first
        expect(token).to_contain_text("(10,000,000·characters)")
        expect(page.locator(".prompt").first).to_contain_text("(1,000,000·characters)")
        assert len(token.text_content() or "") < 300
        token.focus()
        expect(page.locator(".token-card dd[data-fact=position]")).to_have_text("0")
        longest = page.evaluate(LONGEST_TASK)
        print(f"the longest task took {longest:.0f} ms")


def test_a_page_cuts_what_a_server_did_not(page: Page, runs: Path, address: str) -> None:
    def long(route: object) -> None:
        answer = route.fetch()  # type: ignore[attr-defined]
        record = answer.json()
        record["groups"][0]["prompt"] = " " * 100_000
        record["groups"][0]["samples"][0]["pieces"][0] = "\u202e" * 100_000
        route.fulfill(status=200, json=record)  # type: ignore[attr-defined]

    page.route("**/api/rollout?*", long)
    row = board_runs.read_step(runs / "dhpo-0" / "rollouts" / "step-000006.json.gz")["groups"][0]["samples"][0]["row"]
    page.goto(address + f"#/rollouts?run=dhpo-0&step=6&row={row}")
    expect(page.locator(".sample .token").first).to_contain_text("U+202E")
    assert len(page.locator(".sample .token").first.text_content() or "") == 240 * len("U+202E") + 1
    assert len(page.locator(".prompt .said").first.text_content() or "") == 20_101


def test_an_answer_of_too_many_tokens_opens(page: Page, runs: Path, tmp_path: Path) -> None:
    run = board_runs.copy_run(runs / "dhpo-0", tmp_path / "runs" / "long")

    def change(groups: list[dict]) -> None:
        for group in groups:
            sample = group["samples"][0]
            times = 60_000 // len(sample["pieces"]) + 1
            for key, value in sample.items():
                if isinstance(value, list):
                    sample[key] = value * times

    rewritten(run, change)
    with board_runs.board(tmp_path / "runs") as at:
        page.goto(at + "#/rollouts?run=long")
        expect(page.locator(".sample-head .chip.warn").first).to_contain_text("more not shown")
        assert page.locator(".sample .token").count() == 32_768
        print(f"the longest task took {page.evaluate(LONGEST_TASK):.0f} ms")
