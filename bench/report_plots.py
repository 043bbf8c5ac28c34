"""The plots of docs/performance.md, in colours that the colour-blind can tell apart (Okabe and Ito)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from phases import PHASES

OURS, PEER, AIM = "#0072B2", "#999999", "#D55E00"
COLOURS = dict(zip(PHASES, ("#0072B2", "#F0E442", "#56B4E9", "#009E73", "#D55E00", "#BBBBBB"), strict=True))
SWEEPS = {
    "batch": "answers in a step",
    "length": "tokens of an answer",
    "vocabulary": "tokens in the vocabulary",
    "model": "parameters, in millions",
}


def plot_ratios(measured: Mapping[str, Mapping[str, Any]], file: Path) -> None:
    """Bars of how many times as fast, with the quartiles over paired windows and the aim where there is one."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 0.55 * len(measured) + 1.2), layout="constrained")
    for place, found in enumerate(measured.values()):
        low, high = found["ratio"] - found["ratio_low"], found["ratio_high"] - found["ratio"]
        hatch = "" if found["idle"] else "//"
        # The ratio of medians may lie outside of the quartiles over pairs: a bar has no negative length.
        axes.barh(place, found["ratio"], 0.6, color=OURS, hatch=hatch, edgecolor="white",
                  xerr=[[max(low, 0)], [max(high, 0)]], error_kw={"capsize": 3, "ecolor": "#222222"})  # fmt: skip
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(max(found["ratio"], found["ratio_high"]) + 0.1, place, f"{found['ratio']:.1f}×", va="center", bbox=box, zorder=3)
        if found["wanted"] is not None:
            axes.plot([found["wanted"]] * 2, [place - 0.38, place + 0.38], color=AIM, linewidth=2.5)
    axes.axvline(1.0, color=PEER, linewidth=1)
    axes.set_yticks(range(len(measured)), list(measured))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(max(found["ratio_high"], found["ratio"], found["wanted"] or 0) for found in measured.values()))
    axes.set_xlabel("times as fast as the peer\n(grey line: the peer; orange: wanted; hatched: the machine was not idle)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def plot_scaling(found: Mapping[str, Any], file: Path) -> None:
    """Step time against each size, where the time goes, and memory against tokens: of what was measured."""
    plt = _pyplot()
    by = {sweep: [point for point in found["points"] if point["sweep"] == sweep] for sweep in SWEEPS}
    panels = [partial(_plot_sweep, sweep=sweep, points=points) for sweep, points in by.items() if points]
    split = next((sweep for sweep in ("model", "length", "batch", "vocabulary") if by[sweep]), "")
    if split:
        panels.append(partial(_plot_phases, sweep=split, points=by[split]))
    if by["batch"] or by["length"]:
        panels.append(partial(_plot_memory, points=[*by["batch"], *by["length"]]))
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(4 * columns, 3.3 * lines), layout="constrained", squeeze=False)
    for axes, draw in zip_longest(grid.flat, panels):
        if draw is None:
            axes.set_visible(False)
            continue
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _plot_sweep(axes: Any, sweep: str, points: list[Mapping[str, Any]]) -> None:
    axes.set_title(f"step time against {SWEEPS[sweep]}", fontsize=10)
    axes.set_xlabel(SWEEPS[sweep])
    axes.set_ylabel("seconds a step")
    at = [point["x"] for point in points]
    middle = [point["seconds"] for point in points]
    axes.fill_between(at, [p["seconds_low"] for p in points], [p["seconds_high"] for p in points], color=OURS, alpha=0.25, lw=0)
    axes.loglog(at, middle, "o-", color=OURS, markersize=4)
    _ticks(axes, at, [point["label"].removesuffix("M") for point in points])
    axes.grid(alpha=0.3, which="major")


def _plot_phases(axes: Any, sweep: str, points: list[Mapping[str, Any]]) -> None:
    axes.set_title(f"where the time goes, by {SWEEPS[sweep]}", fontsize=10)
    axes.set_ylabel("share of a step")
    labels, bottom = [point["label"] for point in points], [0.0] * len(points)
    for phase in PHASES:
        shares = [point["phases"][phase] / sum(point["phases"].values()) for point in points]
        axes.bar(labels, shares, 0.7, bottom=bottom, color=COLOURS[phase], label=phase, edgecolor="white")
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axes.set_ylim(0, 1)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, reverse=True)


def _plot_memory(axes: Any, points: list[Mapping[str, Any]]) -> None:
    axes.set_title("peak memory against tokens", fontsize=10)
    axes.set_xlabel("tokens in a step, prompts included")
    axes.set_ylabel("MiB")
    for sweep, label, colour, marker in (("batch", "more answers", OURS, "o"), ("length", "longer answers", AIM, "s")):
        of = sorted((point["tokens"], point["memory"]) for point in points if point["sweep"] == sweep)
        if of:
            axes.loglog(*zip(*of, strict=True), marker=marker, color=colour, markersize=4, label=label)
    axes.grid(alpha=0.3, which="major")
    axes.legend(fontsize=8, frameon=False)


def _ticks(axes: Any, at: list[float], labels: list[str]) -> None:
    """A tick for each measured size, and none between."""
    axes.set_xticks(at, labels, fontsize=8)
    axes.minorticks_off()


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
