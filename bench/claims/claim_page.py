"""A claim's page: the table, one judged line per statement, the curves, and the numbers as data."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import Claim, Result, Statement, TextBed

from upslope.errors import UserError

POINTS = 100
"""Most points of a curve in the plot and in the data."""
SMOOTH = 5
"""Steps over which the curves of whole runs are averaged: their metrics are samples, those of a table are exact."""
FEWEST = 3
"""Seeds from which on there are intervals and verdicts: one seed alone would "hold" with an interval of no width."""


# -- statistics ------------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Interquartile mean over seeds with a 95% bootstrap interval."""
    from upslope.runtime.statistics import bootstrap_interval, interquartile_mean

    low, high = bootstrap_interval(values, interquartile_mean)
    return interquartile_mean(values), low, high


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Mean of ours minus theirs, seed by seed, with a 95% bootstrap interval."""
    from upslope.runtime.statistics import bootstrap_interval

    difference = np.asarray(ours) - np.asarray(theirs)
    low, high = bootstrap_interval(difference)
    return float(difference.mean()), low, high


def verdict(low: float, high: float) -> str:
    """``held`` if the interval of ours minus theirs lies above zero, ``did not hold`` if below, else not shown."""
    return "held" if low > 0 else "did not hold" if high < 0 else "not shown at this scale"


def curve_band(curves: np.ndarray) -> tuple[np.ndarray, ...]:
    """Interquartile mean over seeds of curves ``[S, P]`` with a 95% bootstrap interval, each ``[P]``."""
    from upslope.runtime.statistics import iqm_band

    return iqm_band(curves)


# -- numbers ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Found:
    """The results of a claim, by condition and variant."""

    claim: Claim
    results: Sequence[Result]

    def of(self, condition: str, label: str) -> list[Result]:
        return [each for each in self.results if each.cell.condition == condition and each.cell.label == label]

    def values(self, condition: str, label: str, measure: str) -> list[float]:
        """A measure of a variant, seed by seed."""
        found = [float(self.claim.measures[measure](each)) for each in self.of(condition, label)]
        for value, each in zip(found, self.of(condition, label), strict=True):
            if not np.isfinite(value):
                raise UserError(
                    f"{measure!r} of {label}, {condition}, seed {each.cell.seed} is {value}; a measure must be a number."
                )
        return found

    def judged(self, condition: str) -> list[str]:
        """The line of each statement that is made for this condition."""
        return [self._line(each, condition) for each in self.claim.statements if condition in (each.conditions or (condition,))]

    def _line(self, said: Statement, condition: str) -> str:
        ours = self.values(condition, said.ours, said.measure)
        against = isinstance(said.theirs, str)
        theirs = self.values(condition, said.theirs, said.measure) if isinstance(said.theirs, str) else [said.theirs] * len(ours)
        mean, low, high = paired_difference(ours, theirs)
        better = (low, high) if said.higher else (-high, -low)
        if len(ours) < FEWEST:
            better = (-np.inf, np.inf)
        result = verdict(better[0] + said.margin, better[1] + said.margin)
        digits = max(3, 2 - int(np.floor(np.log10(max(abs(low), abs(high), 1e-9)))))
        number = f"{{:+.{min(digits, 8)}f}}".format
        name = said.theirs if against else f"{said.theirs:g}"
        told = (
            f"interval {number(low)} to {number(high)}" if len(ours) >= FEWEST else f"seeds: {len(ours)}, too few for an interval"
        )
        told = f"(difference {number(mean)}, {told})"
        return f"- {said.ours}: {said.words} {name}: **{result}** {told}"

    def intervals(self) -> int:
        return sum(len(self.judged(condition)) for condition in self.claim.conditions)

    def curves(self, condition: str, label: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps ``[P]`` and curves ``[S, P]``, averaged and thinned."""
        curves = np.array([each.curve(metric) for each in self.of(condition, label)])
        steps = np.arange(1, curves.shape[1] + 1)
        if isinstance(self.claim.bed, TextBed) and curves.shape[1] >= 4 * SMOOTH:
            curves = np.array([np.convolve(curve, np.ones(SMOOTH) / SMOOTH, mode="valid") for curve in curves])
            steps = steps[SMOOTH // 2 : SMOOTH // 2 + curves.shape[1]]
        kept = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).astype(int))
        return steps[kept], curves[:, kept]


def plotted(claim: Claim) -> dict[str, str]:
    """The metrics to plot, with titles."""
    if claim.curves:
        return dict(claim.curves)
    text = {"reward": "training reward", "entropy": "entropy"}
    return text if isinstance(claim.bed, TextBed) else {"J": "expected reward (exact)", "exact_entropy": "entropy (exact)"}


# -- writing ---------------------------------------------------------------------------------------------------------------


def write_claim(
    claim: Claim, results: Sequence[Result], out: Path, *, seconds: float, workers: int, command: str, versions: str = ""
) -> Path:
    """The page, the plot and the data; the page's path.

    Args:
        workers: processes that shared the work; 0 says that the seconds are of all of them together.
        versions: with which the results were made, if not with these here.
    """
    from upslope.runtime.files import write_text

    found = Found(claim, results)
    (out / "data").mkdir(parents=True, exist_ok=True)
    lines = [*_head(claim, results), *_tables(found), "## How it was made", "", *_made(found, seconds, workers, command, versions)]
    write_text(out / "data" / f"{claim.name}.json", json.dumps(data(found), separators=(",", ":")) + "\n")
    plot(found, out / f"{claim.name}.png")
    page = out / f"{claim.name}.md"
    write_text(page, "\n".join(lines) + "\n")
    return page


def _head(claim: Claim, results: Sequence[Result]) -> list[str]:
    seeds = sorted({each.cell.seed for each in results})
    changed = {**claim.settings, "steps": len(results[0].metrics)}
    lines = [f"# {claim.title}", "", *_wrapped(claim.about), ""]
    lines += [f"Bed: `{shown(claim.bed)}`.", f"Settings: {', '.join(f'{key} {value}' for key, value in changed.items())}."]
    count = f"{len(seeds)} seeds ({seeds[0]} to {seeds[-1]})" if len(seeds) > 1 else f"One seed ({seeds[0]})"
    paired = f"{count}, paired: with one seed every variant starts from the same weights "
    lines += [*_wrapped(f"{paired} and sees the same tasks and the same noise."), ""]
    return [*lines, *(f"* {label}: {variant}" for label, variant in claim.variants.items()), ""]


def _tables(found: Found) -> list[str]:
    claim, lines = found.claim, []
    for condition, changes in claim.conditions.items():
        lines += [f"## {condition}", ""]
        if changes:
            plain = [f"{key} {value}" for key, value in changes.items() if key != "bed"]
            plain += [f"`{key}={shown(value)}`" for key, value in changes.get("bed", {}).items()]
            lines += [f"Here {', '.join(plain)}.", ""]
        lines += ["| | " + " | ".join(claim.variants) + " |", "|---|" + "---|" * len(claim.variants)]
        for measure in claim.measures:
            cells = [cell_text(found.values(condition, label, measure)) for label in claim.variants]
            lines.append(f"| {measure} | " + " | ".join(cells) + " |")
        lines += ["", *found.judged(condition), ""]
    return lines


def versions_here() -> str:
    """What computes here."""
    import torch

    import upslope

    return f"upslope {upslope.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}"


def _made(found: Found, seconds: float, workers: int, command: str, versions: str) -> list[str]:
    claim, count, seeds = found.claim, found.intervals(), len({each.cell.seed for each in found.results})
    took = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    processes = f"with {workers} processes of one thread" if workers > 1 else "with one process of one thread"
    processes = processes if workers else "of one core"
    about = "Tables: interquartile mean over seeds [95% bootstrap interval]. Lines: mean of the paired differences, ours minus "
    about += "theirs, with its 95% bootstrap interval; held if it lies on the claimed side, did not hold if on the other. "
    about += "There is one such interval" if count == 1 else f"There are {count} such intervals"
    about += f", and no correction is made for their number: {_by_chance(count)} would exclude zero by chance."
    if seeds < FEWEST:
        about = f"Of {claim.seeds} planned seeds {seeds} came out whole, too few for an interval: nothing is judged. Tables: the "
        about += "values of the seeds. Lines: mean of the paired differences, ours minus theirs."
    made = f"*Made by `{command}` in {took} {processes} ({versions or versions_here()}). "
    made += f"Numbers: [data/{claim.name}.json](data/{claim.name}.json).*"
    chosen = f"How the setting was chosen: {claim.chosen}"
    return [*_wrapped(about), "", *_wrapped(chosen), "", f"![curves]({claim.name}.png)", "", made]


def _by_chance(count: int) -> str:
    return f"one in twenty, here about {count / 20:.1f},"


def _wrapped(text: str) -> list[str]:
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    return "\n\n".join(textwrap.fill(paragraph, 120, break_on_hyphens=False) for paragraph in paragraphs).splitlines()


def shown(value: Any) -> str:
    """A bed or a reward with the fields that differ from the defaults."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return getattr(value, "__name__", repr(value))
    plain = type(value)()
    fields = [f.name for f in dataclasses.fields(value)]
    told = [f"{name}={shown(getattr(value, name))}" for name in fields if getattr(value, name) != getattr(plain, name)]
    return f"{type(value).__name__}({', '.join(told)})"


def cell_text(values: Sequence[float], form: Callable[[float], str] | None = None) -> str:
    """``IQM [low, high]``; the values themselves where they are too few."""
    three = spread(values)
    form = form or ("{:.3f}".format if max(map(abs, three)) < 100 else "{:.1f}".format)
    if len(values) < FEWEST:
        return ", ".join(map(form, values))
    middle, low, high = map(form, three)
    return f"{middle} [{low}, {high}]"


def data(found: Found) -> dict[str, Any]:
    """Measures by condition, variant and seed, and curves over seeds as interquartile mean and interval; no times, so that a
    second run gives the same file."""
    claim = found.claim
    told: dict[str, Any] = {"name": claim.name, "title": claim.title, "seeds": sorted({each.cell.seed for each in found.results})}
    for condition in claim.conditions:
        for label in claim.variants:
            here = told.setdefault("conditions", {}).setdefault(condition, {}).setdefault(label, {})
            here["measures"] = {name: _rounded(found.values(condition, label, name), 6) for name in claim.measures}
            here["curves"] = {}
            for metric in plotted(claim):
                steps, curves = found.curves(condition, label, metric)
                named = zip(("middle", "low", "high"), curve_band(curves), strict=True)
                here["curves"][metric] = {"step": steps.tolist(), **{name: _rounded(line, 4) for name, line in named}}
        told.setdefault("judged", {})[condition] = found.judged(condition)
    return told


def _rounded(values: Sequence[float] | np.ndarray, digits: int) -> list[float | None]:
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def plot(found: Found, path: Path) -> None:
    """A row per metric, a column per condition, a line and a band per variant."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    claim, metrics = found.claim, plotted(found.claim)
    size = (max(5.0, 3.8 * len(claim.conditions)), 2.6 * len(metrics) + 0.4)
    figure, axes = plt.subplots(len(metrics), len(claim.conditions), figsize=size, sharex="col", sharey="row", squeeze=False)
    for column, condition in enumerate(claim.conditions):
        for row, (metric, title) in enumerate(metrics.items()):
            axis = axes[row, column]
            for label in claim.variants:
                steps, curves = found.curves(condition, label, metric)
                middle, low, high = curve_band(curves)
                axis.plot(steps, middle, label=label, linewidth=1.3)
                axis.fill_between(steps, low, high, alpha=0.15)
            axis.set_title(title if len(claim.conditions) == 1 else f"{title}, {condition}", fontsize=9)
            axis.grid(alpha=0.3)
        axes[-1, column].set_xlabel("step")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)
