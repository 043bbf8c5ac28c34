"""Takes the picture of a comparison in docs/images anew: ``python docs/comparison_picture.py``, or ``make pictures``.

Makes the comparison that docs/comparing.md tells of (some minutes; what is there of it is kept) and looks at its page with
a real browser. What the page says is printed, for the document beside the picture.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path

from board_pictures import IMAGES, WAIT_MS, save

COMMAND = """compare grpo gspo dhpo --task reverse:length=3 --seeds 5 --steps 60 --lr 3e-4 --updates-per-step 2 --eval-problems 200
    --set gspo:surrogate.low=0.08 --set gspo:surrogate.high=0.11
    --set dhpo:surrogate.sequence.low=0.08 --set dhpo:surrogate.sequence.high=0.11"""
WINDOW = {"width": 1120, "height": 1500}


def main() -> None:
    from playwright.sync_api import sync_playwright

    from upslope.cli import main as upslope

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/comparison"), help="folder of the comparison (build/comparison)")
    flags = parser.parse_args()
    if code := upslope([*shlex.split(COMMAND), "--out", str(flags.out)]):
        sys.exit(code)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or shutil.which("chromium-browser"))
        page = browser.new_context(viewport=WINDOW, color_scheme="light", reduced_motion="reduce").new_page()
        page.goto((flags.out / "report.html").resolve().as_uri())
        page.wait_for_timeout(WAIT_MS)
        save(page.screenshot(), IMAGES / "comparison.png")
        browser.close()
    print((flags.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
