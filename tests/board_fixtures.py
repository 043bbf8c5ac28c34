"""Fixtures of the board's browser tests: small real runs, the board on them, a browser and a page that notices every trouble."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import board_runs
import pytest
from board_browser import CHROMIUM, SIZE, Browser, Page, driver

# A server that is meant to be away, a run that is gone, a form that is filled in wrongly and code that nobody trusts yet make
# the browser complain as well.
EXPECTED = re.compile(r"ERR_CONNECTION_REFUSED|status of 40[049]")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed with its module: as long as it is open an event loop runs in this thread, in which nobody else could start one."""
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small runs and one whose model wrote markup."""
    made = board_runs.small_runs(tmp_path_factory.mktemp("board") / "runs")
    board_runs.make_hostile(board_runs.copy_run(made / "sorting" / "dhpo-sort-0", made / "hostile"))
    return made


@pytest.fixture(scope="session")
def address(runs: Path) -> Iterator[str]:
    with board_runs.board(runs) as at:
        yield at


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page on which a dialog, an error or a breach of the content policy fails the test; ``@pytest.mark.parametrize`` with
    ``indirect`` chooses the colour scheme."""
    scheme = getattr(request, "param", "light")
    context = browser.new_context(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
    context.set_default_timeout(90_000)  # a busy machine is slow, and nothing is wrong with the page
    opened = context.new_page()
    troubles: list[str] = []
    opened.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    opened.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    opened.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    yield opened
    context.close()
    assert [each for each in troubles if not EXPECTED.search(each)] == []
