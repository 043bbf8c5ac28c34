"""The browser that the board's page is tested in, and pictures of what it shows."""

from __future__ import annotations

import shutil

import pytest
from places import ROOT

driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")
from playwright.sync_api import Browser, Locator, Page, expect  # noqa: E402

__all__ = ["CHROMIUM", "CONTRAST", "NEEDS_CHROMIUM", "SIZE", "Browser", "Locator", "Page", "driver", "expect", "picture"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the path. On Debian or Ubuntu: apt-get install chromium"
)
PICTURES = ROOT / "build" / "board"
SIZE = {"width": 1280, "height": 800}
# A test machine may be busy; what is waited for comes in a fraction of this.
expect.set_options(timeout=90_000)

# Every text in sight: its colour over what lies behind it, layer by layer, as the contrast of WCAG 2.
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const paint = (layers) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const layer of layers) { canvas.fillStyle = layer; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const seen = element.checkVisibility({ opacityProperty: true }) && !element.closest(".unseen, script, option");
    if (!seen || !walker.currentNode.data.trim()) continue;
    const behind = [];
    for (let each = element; each; each = each.parentElement) behind.unshift(getComputedStyle(each).backgroundColor);
    const style = getComputedStyle(element);
    const [over, under] = [paint([...behind, style.color]), paint(behind)].map(light);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (Math.max(over, under) + 0.05) / (Math.min(over, under) + 0.05);
    const text = walker.currentNode.data.trim().slice(0, 40);
    found.push({ text, at: element.className || element.tagName, ratio, enough: large ? 3 : 4.5 });
  }
  return found;
}"""


def picture(page: Page, name: str) -> None:
    """A picture of the page in ``build/board``."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")
