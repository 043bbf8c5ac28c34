"""The page of DQN on Pong, from what `pong.py` wrote: ``python bench/pong_page.py`` -> docs/claims/pong.md and pong.png."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ABOUT = """DQN with its settings for images learns Atari's Pong from pixels on a GPU: 16 environments in 4 processes, an update of
32 rows for every second step, exploration falling to 0.01 over the first tenth of the planned steps, no sticky actions. An
episode ends when one side has 21 points; the score is the difference, so -21 is the worst and 21 the best. There is no parent
beside it and no interval over seeds: one run, one seed. Frames are shrunk to 84 x 84 by OpenCV or, where it is missing, by
numpy's average of the same areas; which of the two it was is not recorded."""


def line_of(found: dict[str, Any]) -> str:
    """What came out; the page of the method quotes it."""
    first, last = found["evaluations"][0], found["evaluations"][-1]
    told = f"- {found['method']}: Pong, {last['env_steps']:,} of {found['planned_steps']:,} planned steps, "
    told += f"{last['minutes']:.1f} minutes: score {first['score']:.1f} -> {last['score']:.1f} "
    told += f"({last['low']:.1f} to {last['high']:.1f} over {last['episodes']} episodes)"
    if last["env_steps"] < found["planned_steps"]:
        told += (
            "; its time ended there, not finished and still rising" if _rising(found) else "; its time ended there, not finished"
        )
    return told + "."


def _rising(found: dict[str, Any]) -> bool:
    """Whether the last evaluation is the best of them."""
    scores = [each["score"] for each in found["evaluations"]]
    return scores[-1] > max(scores[:-1])


def write(found: dict[str, Any], pages: Path) -> Path:
    """The page and its plot."""
    knobs = ", ".join(f"{name} {value}" for name, value in {**found["settings"], **found["knobs"], "seed": found["seed"]}.items())
    rows = [
        f"| {each['env_steps']:,} | {each['minutes']:.1f} | {each['score']:.1f} | {each['low']:.1f} to {each['high']:.1f} |"
        for each in found["evaluations"]
    ]
    lines = ["# dqn: Pong from pixels, one seed", "", ABOUT, "", f"Task: `{found['task']}`. Settings: {knobs}.", ""]
    lines += ["## in this setting", "", line_of(found), ""]
    lines += ["| steps | minutes | score | interval over episodes |", "|---|---|---|---|", *rows, ""]
    lines += ["Five episodes a point are few: the score went down twice on the way. It does not win yet at the last point.", ""]
    if found.get("again"):
        lines += ["## The same again", "", *found["again"], ""]
    lines += ["![curve](pong.png)", ""]
    lines += [f"*Made by `{found['command']}` on {found['machine']}. Numbers: `bench/results/pong.json`.*", ""]
    plot(found, pages / "pong.png")
    path = pages / "pong.md"
    path.write_text("\n".join(lines))
    return path


def plot(found: dict[str, Any], path: Path) -> None:
    """Greedy episodes, and the episodes of training where one ended in a step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.0, 3.0))
    judged = found["evaluations"]
    at = [each["env_steps"] for each in judged]
    axis.plot(at, [each["score"] for each in judged], marker="o", markersize=3, linewidth=1.3, label="greedy episodes")
    axis.fill_between(at, [each["low"] for each in judged], [each["high"] for each in judged], alpha=0.15)
    trained = [each for each in found["training"] if "episode_return" in each]
    dots = {"s": 8, "color": "C1", "label": "training episodes"}
    axis.scatter([each["env_steps"] for each in trained], [each["episode_return"] for each in trained], **dots)
    axis.set_xlabel("steps in the environment")
    axis.set_ylabel("score")
    axis.set_ylim(-22, 22)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--found", type=Path, default=ROOT / "bench" / "results" / "pong.json")
    parser.add_argument("--pages", type=Path, default=ROOT / "docs" / "claims")
    given = parser.parse_args(arguments)
    print(write(json.loads(given.found.read_text()), given.pages).read_text())


if __name__ == "__main__":
    main()
