"""Resume on the page, of a run with strange code: named, shown as text, run only after a yes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import board_runs
import pytest
from board_browser import NEEDS_CHROMIUM, Page, expect, picture

import upslope as up
from upslope.run import Watcher

pytest_plugins = ["board_fixtures"]
pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]
SOURCE = """import pathlib
pathlib.Path({canary!r}).touch()
NOTE = "<img src=x onerror=alert(1)>\u202e backwards"

def score(prompts, responses, answers):
    return [1.0] * len(responses)
"""


class Crash(Watcher):
    def stepped(self, step: int, metrics: object) -> None:
        raise RuntimeError("crash")


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """The folder of a crashed run whose reward this machine is made to forget; what shows that it ran is not there yet."""
    reward, canary = tmp_path / "mine.py", tmp_path / "canary"
    reward.write_text(SOURCE.format(canary=str(canary)), encoding="utf-8")
    run = tmp_path / "runs" / "strange"
    with pytest.raises(RuntimeError, match="crash"):
        up.train("grpo", "reverse:length=2", reward=f"{reward}:score", steps=2000, out=run, watcher=Crash(), **board_runs.SMALL)
    reward.unlink()
    canary.unlink()
    return tmp_path / "runs"


def test_strange_code_is_read_on_the_page_before_it_runs(page: Page, strange: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    canary = tmp_path / "canary"
    with board_runs.board(strange, "--allow-control") as at:
        page.goto(at + "#/curves?run=strange")
        button = page.get_by_role("button", name="Resume")
        button.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("mine.py")
        expect(dialog.locator("code")).to_have_text(_digest(strange / "strange"))
        expect(dialog.locator("pre")).to_contain_text("<img src=x onerror=alert(1)>\u27e8U+202E\u27e9 backwards")
        expect(page.get_by_role("button", name="Do not run it")).to_be_focused()
        assert dialog.locator("img").count() == 0
        picture(page, "trust")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(button).to_be_enabled()
        assert not canary.exists() and not (strange / "strange" / "output.log").exists()

        button.click()
        page.get_by_role("button", name="Trust this code and resume").click()
        expect(page.locator(".legend")).to_contain_text("running")
        until = time.monotonic() + 60
        while not canary.exists():
            assert time.monotonic() < until, (strange / "strange" / "output.log").read_text()
            time.sleep(0.1)
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".legend")).to_contain_text("stopped")
    assert (tmp_path / "state" / "upslope" / "trusted-code").read_text().split() == [_digest(strange / "strange")]
    assert os.listdir(strange) == ["strange"]


def _digest(run: Path) -> str:
    from upslope.runtime import trust

    (digest,) = trust.code_of(up.load(run).table, run / "code")
    return digest
