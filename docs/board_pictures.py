"""Takes the pictures of the board in docs/images anew: ``python docs/board_pictures.py``, or ``make pictures``.

Trains the runs of tests/board_gallery.py until they have learned something (some minutes), starts the board on them, and looks with
a real browser, at a desk and on a phone, light and dark. Pictures have 256 colours, so that they stay small.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import board_runs  # noqa: E402
from board_gallery import LEARNING, gallery  # noqa: E402

IMAGES = Path(__file__).parent / "images"
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 780}
SWEEP = "&".join(f"run=sweep/gated-lr{lr}-clip{clip}" for lr in ("0.0001", "0.0003") for clip in ("0.1", "0.2", "0.3"))
PICTURES: dict[str, tuple[str, str, dict[str, int], str]] = {
    "board-runs": ("#/?col=lr", "tr.run", {"width": 1440, "height": 860}, "light"),
    "board-runs-phone": ("#/", "tr.run", PHONE, "light"),
    "board-runs-phone-dark": ("#/?filter=folder:sweep", "tr.run", PHONE, "dark"),
    "board-curves": (f"#/curves?{SWEEP}&key=reward&key=entropy&key=kl_start&key=grad_norm&smooth=0.6", ".legend li", DESK, "light"),
    "board-curves-dark": ("#/curves?run=dhpo-0&run=dhpo-1&bands=1", ".legend li", DESK, "dark"),
    "board-curves-phone": (f"#/curves?{SWEEP}&key=reward&smooth=0.6&filter=high:0.2", ".legend li", PHONE, "light"),
    "board-rollouts": ("#/rollouts?run=dhpo-0&by=ratio", ".sample .token", DESK, "light"),
    "board-rollouts-dark": ("#/rollouts?run=dhpo-0&by=advantage", ".sample .token", DESK, "dark"),
    "board-rollouts-phone": ("#/rollouts?run=dhpo-0&by=ratio", ".sample .token", PHONE, "dark"),
    "board-episode": ("#/rollouts?run=control/cartpole", ".screen:not([hidden])", DESK, "light"),
    "board-method": ("#/method?run=dhpo-0", ".settings dl", DESK, "light"),
    "board-method-phone": ("#/method?run=dhpo-0", ".settings dl", PHONE, "light"),
    "board-critics": ("#/critics?run=control/pendulum", ".critics .uplot", DESK, "dark"),
    "board-crashed": ("#/curves?run=unpriced", ".notice.bad", PHONE, "light"),
}
"""By name: the address, what is there when the view is, the window, the colours."""
COLOURS = 256
WAIT_MS = 1500
"""For fonts, charts and pictures of an episode, which say nothing when they are done."""


def save(png: bytes, path: Path) -> None:
    """With the colours that most of it has, as they are; the rest become the nearest of them."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    counted = sorted(picture.getcolors(2**24), reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in counted for part in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


def look(browser: Any, at: str, name: str) -> None:
    where, there, size, scheme = PICTURES[name]
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(at + where)
    page.locator(there).first.wait_for(timeout=60_000)
    page.wait_for_timeout(WAIT_MS)
    save(page.screenshot(), IMAGES / f"{name}.png")
    context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, help="runs that were made before (made anew)")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = flags.runs or gallery(Path(temporary) / "runs", LEARNING)
        with board_runs.board(runs) as at, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or shutil.which("chromium-browser"))
            for name in PICTURES:
                look(browser, at, name)
            browser.close()
    total = sum((IMAGES / f"{name}.png").stat().st_size for name in PICTURES)
    print(f"{len(PICTURES)} pictures, {total / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
