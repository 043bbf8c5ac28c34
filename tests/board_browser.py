"""The browser that the board's page is tested in, and pictures of what it shows."""

from __future__ import annotations

import shutil

import pytest
from places import ROOT

driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")
from playwright.sync_api import Browser, Locator, Page, expect  # noqa: E402

__all__ = ["CHROMIUM", "NEEDS_CHROMIUM", "SIZE", "Browser", "Locator", "Page", "driver", "expect", "picture"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the path. On Debian or Ubuntu: apt-get install chromium"
)
PICTURES = ROOT / "build" / "board"
SIZE = {"width": 1280, "height": 800}
# A test machine may be busy; what is waited for comes in a fraction of this.
expect.set_options(timeout=20_000)


def picture(page: Page, name: str) -> None:
    """A picture of the page in ``build/board``."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")
