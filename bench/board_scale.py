"""How fast the board opens 1,000 runs of 10,000 steps, and whether it scrolls: ``python bench/board_scale.py``.

Writes that many run folders (a sweep of a method over learning rates, clips and seeds; 3 GB of logs, none shared), starts the board
on them as a process of its own, and asks a real browser: from the click to the painted list, cold and again; the longest frame
while the whole list is scrolled through; from the click to 48 drawn curves. ``--runs`` and ``--steps`` make it smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import tomli_w

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import board_folders  # noqa: E402
import board_runs  # noqa: E402

CURVES = 48
SERVER, PAGE = b"upslope\0board", b"--type=renderer"
METRICS = ("entropy", "kl_start", "clip_fraction", "learning", "grad_norm", "length", "constant_groups", "loss", "lr", "updates")
SCROLL = """async () => {
  const box = document.querySelector(".scroller");
  const frames = [];
  const far = box.scrollHeight;
  let before = performance.now();
  for (let at = 0; at < far; at += 600) {
    box.scrollTop = at;
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - before);
    before = performance.now();
  }
  return frames.slice(1).sort((one, other) => one - other);
}"""


def write_runs(root: Path, runs: int, steps: int) -> None:
    """A sweep in folders of a hundred, each run with a log of its own."""
    for number in range(runs):
        lr, high, seed = (1e-4, 3e-4, 1e-3)[number % 3], (0.1, 0.2, 0.3)[number // 3 % 3], number // 9
        folder = root / f"sweep-{number // 100}" / f"run-{number:04}"
        folder.mkdir(parents=True)
        plan = board_folders.plan("grpo", "reverse", {"surrogate.high": high}, lr=lr, seed=seed, steps=steps)
        (folder / "run.toml").write_text(tomli_w.dumps(plan))
        with (folder / "metrics.jsonl").open("w") as log:
            log.write(json.dumps(board_folders.evaluation(0, 0.2)) + "\n")
            rest = "".join(f', "{name}": {0.1234567 + place + number / 1e4:.7f}' for place, name in enumerate(METRICS))
            rest += ', "samples": 32, "tokens": 256.0, "seconds": 0.5'
            for step in range(1, steps + 1):
                reward = step / (step + 2000) + (step * 7919 + number * 31) % 100 / 1000
                log.write(f'{{"kind": "step", "step": {step}, "reward": {reward:.6f}{rest}}}\n')
            log.write(json.dumps(board_folders.evaluation(steps, 0.8)) + "\n")
        summary = {"steps": steps, "score": "accuracy", "score_before": 0.2, "score_after": (number * 37 % runs) / runs}
        (folder / "summary.json").write_text(json.dumps(summary | {"seconds": steps * 0.5, "tokens": steps * 256.0}))


def processor_seconds(word: bytes) -> float:
    """Processor time so far of the processes with this word in their command: the board's, or the one that draws the page."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if word in (stat.parent / "cmdline").read_bytes():
                fields = stat.read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def measure(root: Path, runs: int) -> None:
    """The figures, a line each."""
    from playwright.sync_api import sync_playwright

    with board_runs.board(root) as at, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or shutil.which("chromium-browser"))
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        painted = "() => performance.getEntriesByName('runs-painted')[0]?.startTime"
        for name in ("first", "again"):
            page.goto("about:blank")
            served, drawn = processor_seconds(SERVER), processor_seconds(PAGE)
            page.goto(at)
            page.wait_for_function(painted)
            took = f"{processor_seconds(SERVER) - served:.2f} s of processor time of the server"
            took += f", {processor_seconds(PAGE) - drawn:.2f} s of the page"
            print(f"{name}: {runs} runs painted {page.evaluate(painted) / 1000:.2f} s after the click ({took})", flush=True)
        page.wait_for_selector(".name a:has-text('· lr')")
        named = page.evaluate("() => performance.now()")
        print(f"named by what differs {named / 1000:.2f} s after the click")
        page.wait_for_timeout(3000)  # everything has been read
        drawn = processor_seconds(PAGE)
        frames = page.evaluate(SCROLL)
        each = (processor_seconds(PAGE) - drawn) / len(frames) * 1000
        late = sum(frame > 50 for frame in frames)
        print(
            f"scrolled through in {len(frames)} frames: middle {frames[len(frames) // 2]:.0f} ms, "
            f"longest {frames[-1]:.0f} ms, {late} over 50 ms; {each:.1f} ms of the page's processor time each"
        )
        folders = sorted(path.parent.relative_to(root).as_posix() for path in root.glob("*/*/run.toml"))[:CURVES]
        for name in ("first", "again"):
            page.goto("about:blank")
            began = time.perf_counter()
            page.goto(f"{at}#/curves?key=reward&" + "&".join(f"run={each}" for each in folders))
            page.wait_for_function(
                f"() => document.querySelectorAll('[data-key=reward] .chart > ul li').length === {len(folders)}", timeout=120_000
            )
            print(f"{name}: {len(folders)} curves drawn {time.perf_counter() - began:.2f} s after the click", flush=True)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--at", type=Path, help="a folder to write them to, or one that has them (a temporary one)")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = flags.at or Path(temporary) / "runs"
        if not root.exists():
            write_runs(root, flags.runs, flags.steps)
        measure(root, flags.runs)


if __name__ == "__main__":
    main()
