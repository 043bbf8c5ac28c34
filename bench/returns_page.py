"""The page of returns beside Stable-Baselines3 and d3rlpy, from what `off_policy_returns.py` found.

python bench/returns_page.py        # bench/results/off_policy_returns.json -> docs/claims/returns-beside-peers.md and .png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from off_policy_returns import DATA_RECIPE, DATA_STEPS, DATA_TASK, EPISODES, ONLINE

ROOT = Path(__file__).resolve().parents[1]
NAME = "returns-beside-peers"
ABOUT = f"""Both sides make as many steps in the environment, or as many updates from the same data, and are judged by the same
{EPISODES} greedy episodes. Online (sac, td3): one environment, an update for each step, the defaults of
Stable-Baselines3 on both sides, and in td3 on both sides the noise of 0.1 of its paper. From data (td3-bc, iql, cql):
{DATA_STEPS:,} steps of {DATA_TASK} (`{DATA_RECIPE}`), the defaults of each side. In td3-bc and iql they are the same networks and
rates; in cql they are not: d3rlpy learns the weight of the penalty, has an actor's rate of 1e-4 (ours 3e-5), values the
policy's mean action, and sees normalised observations. A run is a process of one thread; networks are on one GPU, which up to
sixteen runs shared, so seconds say little."""
READING = """Intervals are 95 %, by Student's t over three seeds, which makes them wide: that they overlap in all five is a weak
statement, and would be true of many sides that differ. What stands behind *runs* says more: whether every run of one side is
above every run of the other, which happens to two equal sides in one case of ten.

sac's runs are all above Stable-Baselines3's, two of ours far above, one near them. 60,000 steps are early, and the runs of one
side differ threefold; a test holds that one update equals theirs, so this is no claim that ours learns faster. cql's runs are all
below d3rlpy's, with the different defaults named above and little learned on either side: random actions return about -1200, and
3,000 updates are few. td3, td3-bc and iql cannot be told apart; neither side's td3 has learned to hop by then."""


def sides_of(found: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """For each method the peer's name, our numbers and theirs."""
    told: dict[str, dict[str, dict[str, Any]]] = {}
    for name, each in found["summary"].items():
        method, side = name.split(", ")
        told.setdefault(method, {})[side] = each
    pairs = {}
    for method in sorted(told, key=lambda each: (each not in ONLINE, each)):
        (peer,) = set(told[method]) - {"ours"}
        pairs[method] = (peer, told[method]["ours"], told[method][peer])
    return pairs


def order(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Whether all runs of one side are above all of the other."""
    if min(ours) > max(theirs):
        return "all of ours above"
    return "all of ours below" if max(ours) < min(theirs) else "mixed"


def line_of(method: str, peer: str, ours: dict[str, Any], theirs: dict[str, Any], overlap: bool) -> str:
    """What came out; a method's page quotes it."""
    what = f"{ONLINE[method]}, {ours['at']:,} steps" if method in ONLINE else f"{DATA_TASK}'s data, {ours['at']:,} updates"
    said = f"- {method}: {what}: return {_number(ours)}, {peer} {_number(theirs)}: intervals "
    return said + f"{'overlap' if overlap else 'do not overlap'}; runs: {order(ours['finals'], theirs['finals'])}."


def _number(side: dict[str, Any]) -> str:
    low, high = side["interval"]
    return f"{side['return']:.0f} ({low:.0f} to {high:.0f}, {side['seeds']} seeds)"


def write(found: dict[str, Any], pages: Path) -> Path:
    """The page and its plot."""
    pairs = sides_of(found)
    lines = ["# Returns beside Stable-Baselines3 and d3rlpy", "", ABOUT, "", "## at the same steps or updates", ""]
    lines += [line_of(method, *pair, found["overlap"][method]) for method, pair in pairs.items()]
    lines += ["", "| | side | seeds' returns | seconds |", "|---|---|---|---|"]
    for method, (peer, ours, theirs) in pairs.items():
        for side, each in (("upslope", ours), (peer, theirs)):
            finals = ", ".join(f"{value:.0f}" for value in each["finals"])
            lines.append(f"| {method} | {side} | {finals} | {each['seconds']:.0f} |")
    lines += ["", "## How to read it", "", READING, "", f"![curves]({NAME}.png)", ""]
    lines += [
        f"*Made by `{found['command']}` on one H200 and 16 cores, beside other jobs; runs, curves and every episode are in "
        "`bench/results/off_policy_returns.json`.*",
        "",
    ]
    plot(found["runs"], list(pairs), pages / f"{NAME}.png")
    path = pages / f"{NAME}.md"
    path.write_text("\n".join(lines))
    return path


def plot(runs: list[dict[str, Any]], methods: list[str], path: Path) -> None:
    """A panel a method, a line a run, a colour a side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(methods), figsize=(2.7 * len(methods) + 0.4, 2.8), squeeze=False)
    for axis, method in zip(axes[0], methods, strict=True):
        for each in (run for run in runs if run["method"] == method):
            mine = each["side"] == "ours"
            label = ("upslope" if mine else each["side"]) if each["seed"] == 0 else None
            means = [np.mean(point["returns"]) for point in each["curve"]]
            axis.plot([point["at"] for point in each["curve"]], means, color="C0" if mine else "C1", linewidth=1.2, label=label)
        axis.set_title(method, fontsize=9)
        axis.set_xlabel("steps" if method in ONLINE else "updates")
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6)
    axes[0, 0].set_ylabel("return")
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--found", type=Path, default=ROOT / "bench" / "results" / "off_policy_returns.json")
    parser.add_argument("--pages", type=Path, default=ROOT / "docs" / "claims")
    given = parser.parse_args(arguments)
    print(write(json.loads(given.found.read_text()), given.pages).read_text())


if __name__ == "__main__":
    main()
