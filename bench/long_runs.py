"""A page of long runs, one seed each: curves of their evaluations over the steps in the environment, and how fast they were.

    python bench/long_runs.py page FOLDER/sac-1m FOLDER/td3-1m           # run folders; docs/claims/long-runs.md, .png, data/

There is no parent beside them and no interval over seeds: they show that a method goes on learning, not that it is better. Of a
run folder only `run.toml` and `metrics.jsonl` are read, so that a run that was cut off has a curve too.
`docs/claims/data/long-runs.json` keeps what was read; without folders the page is written from it anew.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parents[1] / "docs" / "claims"
NAME = "long-runs"
ABOUT = """Single runs on a GPU, of the defaults of their method but where it is said. A score is the mean return of some greedy
episodes; the interval in a line is that over the episodes of the last evaluation, of one run with one seed. Acting is a CPU's,
in the same process, beside other jobs on 16 cores; its share of the time includes waiting for the GPU's last updates, whose
weights it needs. Updates a second are those of the remaining time."""


def read(folder: Path) -> dict[str, Any]:
    """What a run's folder says: its settings, its evaluations by steps in the environment, its speed."""
    table = tomllib.loads((folder / "run.toml").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    acted = {0: 0.0} | {line["step"]: line["env_steps"] for line in steps}
    settings, learning = table["settings"], [line["seconds"] - line["seconds_sampling"] for line in steps]
    updates = sum(line["updates"] for line in steps)
    return {
        "method": table["method"]["name"],
        "task": table["task"],
        "seed": settings["seed"],
        "sizes": {name: settings[name] for name in ("envs", "horizon", "updates_per_step", "steps", "minibatch", "lr")},
        "build": table["build"],
        "curve": [
            {"at": acted[line["step"]], **{key: line[key] for key in ("score", "low", "high", "episodes")}}
            for line in lines
            if line["kind"] == "evaluation" and line["step"] in acted
        ],
        "env_steps": steps[-1]["env_steps"] if steps else 0.0,
        "updates": updates,
        "minutes": sum(line["seconds"] for line in steps) / 60,
        "acting_share": 1 - sum(learning) / max(sum(line["seconds"] for line in steps), 1e-9),
        "updates_per_second": updates / max(sum(learning), 1e-9),
    }


def line_of(run: dict[str, Any]) -> str:
    """What came out; a method's page quotes it."""
    last = run["curve"][-1]
    told = f"- {run['method']}: {run['task']}, {last['at']:,.0f} steps: return **{last['score']:.0f}** "
    told += f"({last['low']:.0f} to {last['high']:.0f} over {last['episodes']} episodes; {run['curve'][0]['score']:.0f} untrained"
    told += f", {run['curve'][-2]['score']:.0f} at the evaluation before it). "
    if run["env_steps"] < (planned := run["sizes"]["envs"] * run["sizes"]["horizon"] * run["sizes"]["steps"]):
        told += f"Cut off at {run['env_steps']:,.0f} of {planned:,} steps. "
    told += _steadiness([point["score"] for point in run["curve"]])
    told += (
        f"{run['updates']:,.0f} updates in {run['minutes']:.1f} minutes, {run['updates_per_second']:,.0f} a second while learning; "
    )
    return told + f"acting took {run['acting_share']:.0%} of the time."


def _steadiness(scores: list[float]) -> str:
    """How often it fell back, told only where it did."""
    level = max(scores) - 0.1 * abs(max(scores))
    later = scores[next(number for number, score in enumerate(scores) if score >= level) + 1 :]
    fell = sum(score < level for score in later)
    return f"Of {len(later)} evaluations after the first within a tenth of the highest, {fell} fell below that. " if fell else ""


def write(runs: list[dict[str, Any]], pages: Path) -> Path:
    """The page, its plot and its data."""
    (pages / "data").mkdir(parents=True, exist_ok=True)
    (pages / "data" / f"{NAME}.json").write_text(json.dumps(runs, indent=1) + "\n")
    plot(runs, pages / f"{NAME}.png")
    lines = [
        "# Long runs on a GPU, one seed each",
        "",
        *textwrap.wrap(" ".join(ABOUT.split()), 120),
        "",
        "## in these settings",
        "",
    ]
    lines += [line_of(run) for run in runs]
    lines += ["", "| run | seed | settings | made with |", "|---|---|---|---|"]
    for run in runs:
        sizes = ", ".join(f"{name} {value}" for name, value in run["sizes"].items())
        built = ", ".join(f"{name} {value}" for name, value in run["build"].items())
        lines.append(f"| {run['method']} on {run['task']} | {run['seed']} | {sizes} | {built} |")
    lines += ["", f"![curves]({NAME}.png)", ""]
    lines += [f"*Made by `python bench/long_runs.py page RUN ...`. Numbers: [data/{NAME}.json](data/{NAME}.json).*", ""]
    path = pages / f"{NAME}.md"
    path.write_text("\n".join(lines))
    return path


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    """A panel a run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(runs), figsize=(3.8 * len(runs) + 0.4, 3.0), squeeze=False)
    for axis, run in zip(axes[0], runs, strict=True):
        at = [point["at"] for point in run["curve"]]
        axis.plot(at, [point["score"] for point in run["curve"]], linewidth=1.3)
        low, high = ([point[side] for point in run["curve"]] for side in ("low", "high"))
        axis.fill_between(at, low, high, alpha=0.15)
        axis.set_title(f"{run['method']} on {run['task'].removeprefix('gym:')}", fontsize=9)
        axis.set_xlabel("steps in the environment")
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("return")
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("page",))
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs; left out, those already told of")
    parser.add_argument("--pages", type=Path, default=PAGES)
    given = parser.parse_args(arguments)
    runs = [read(folder) for folder in given.runs] or json.loads((given.pages / "data" / f"{NAME}.json").read_text())
    print(write(runs, given.pages).read_text())


if __name__ == "__main__":
    main()
