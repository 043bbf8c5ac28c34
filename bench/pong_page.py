"""The page of DQN on Pong, from what `pong.py` wrote: ``python bench/pong_page.py`` -> docs/claims/pong.md and pong.png."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ABOUT = """DQN with its settings for images learns Atari's Pong from pixels on a GPU: 16 environments, an update of
32 rows for every second step, exploration falling to 0.01 over the first tenth of the planned steps, no sticky actions. An
episode ends when one side has 21 points; the score is the difference, so -21 is the worst and 21 the best. There is no parent
beside it and no interval over seeds. Frames are shrunk to 84 x 84 by OpenCV or, where it is missing, by numpy's average of the same
areas."""


def line_of(run: dict[str, Any]) -> str:
    """What came out; the page of the method quotes it."""
    first, last = run["evaluations"][0], run["evaluations"][-1]
    told = f"- {run['method']}: Pong, seed {run['seed']}, {last['env_steps']:,} of {run['planned_steps']:,} planned steps, "
    told += f"{last['minutes']:.1f} minutes: score {first['score']:.1f} -> {last['score']:.1f} "
    told += f"({last['low']:.1f} to {last['high']:.1f} over {last['episodes']} episodes)"
    if last["env_steps"] < run["planned_steps"]:
        told += "; its time ended there, not finished and still rising" if _rising(run) else "; its time ended there, not finished"
    return told + "."


def _rising(run: dict[str, Any]) -> bool:
    """Whether the last evaluation is the best of them."""
    scores = [each["score"] for each in run["evaluations"]]
    return scores[-1] > max(scores[:-1])


def write(found: dict[str, Any], pages: Path) -> Path:
    """The page and its plot."""
    runs = found["runs"]
    knobs = ", ".join(f"{name} {value}" for name, value in {**runs[0]["settings"], **runs[0]["knobs"]}.items())
    judged = [(run["seed"], each) for run in runs for each in run["evaluations"]]
    rows = [
        f"| {seed} | {at['env_steps']:,} | {at['minutes']:.1f} | {at['score']:.1f} | {at['low']:.1f} to {at['high']:.1f} |"
        for seed, at in judged
    ]
    lines = ["# dqn: Pong from pixels", "", ABOUT, "", f"Task: `{runs[0]['task']}`. Settings: {knobs}.", ""]
    lines += ["## in this setting", "", *map(line_of, runs), ""]
    lines += ["| seed | steps | minutes | score | interval over episodes |", "|---|---|---|---|---|", *rows, "", *found["note"], ""]
    if found.get("again"):
        lines += ["## Without Adam's larger eps", "", *found["again"], ""]
    lines += ["![curve](pong.png)", ""]
    lines += [f"*Made by `{found['command']}` on {found['machine']}. Numbers: `bench/results/pong.json`.*", ""]
    plot(runs, found.get("older"), pages / "pong.png")
    path = pages / "pong.md"
    path.write_text("\n".join(lines))
    return path


def plot(runs: Sequence[dict[str, Any]], older: dict[str, Any] | None, path: Path) -> None:
    """Greedy episodes, and the episodes of training where one ended in a step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.0, 3.0))
    shown = [(run, f"seed {run['seed']}", "-") for run in runs] + ([(older, "eps 1e-8, seed 0", "--")] if older else [])
    for color, (run, label, line) in enumerate(shown):
        judged, at = run["evaluations"], [each["env_steps"] / 1000 for each in run["evaluations"]]
        axis.plot(
            at, [each["score"] for each in judged], line, marker="o", markersize=3, linewidth=1.3, label=label, color=f"C{color}"
        )
        axis.fill_between(at, [each["low"] for each in judged], [each["high"] for each in judged], alpha=0.15, color=f"C{color}")
        trained = [each for each in run["training"] if "episode_return" in each] if line == "-" else []
        returns = [each["episode_return"] for each in trained]
        axis.scatter([each["env_steps"] / 1000 for each in trained], returns, s=5, alpha=0.5, color=f"C{color}")
    axis.set_xlabel("thousand steps in the environments (dots: episodes of training)")
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
