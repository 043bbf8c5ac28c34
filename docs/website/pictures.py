"""Pictures of a built site for README and docs: ``make site-pictures``, or ``python docs/website/pictures.py [FOLDER]``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
QUESTION = "index.html#q=my+rewards+are+noisy+and+I+reuse+rollouts"
PICTURES = {
    "site-catalogue": (QUESTION, 1280, "light"),
    "site-catalogue-dark": (QUESTION, 1280, "dark"),
    "site-catalogue-phone": (QUESTION, 390, "light"),
    "site-tree": ("tree.html", 1280, "light"),
}
"""By the name of the file: which page, how wide, light or dark."""


def main(arguments: list[str]) -> int:
    from playwright.sync_api import sync_playwright

    site = Path(arguments[0] if arguments else ROOT / "build" / "site").resolve()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None or not (site / "index.html").exists():
        print("a site (make site) and chromium are needed. On Debian or Ubuntu: apt-get install chromium", file=sys.stderr)
        return 2
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        for name, (page, width, scheme) in PICTURES.items():
            context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
            opened = context.new_page()
            opened.goto(f"{site.as_uri()}/{page}")
            opened.locator(".cat-row, .tree-node").first.wait_for()
            opened.screenshot(path=ROOT / "docs" / "images" / f"{name}.png")
            context.close()
        browser.close()
    print(f"{len(PICTURES)} pictures in docs/images")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
