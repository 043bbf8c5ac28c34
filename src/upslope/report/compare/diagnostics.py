"""What the methods did on the way, side by side: entropy, KL, clipping, gradients, waste, time and memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from upslope.report.compare.gathering import Field, Trained
from upslope.runtime.statistics import interquartile_mean, iqm_band

POINTS = 80
"""Most points of a curve."""
END = 0.1
"""The share of the steps that is the end of a run."""


class Watched(NamedTuple):
    """A metric, and which part of a run its figure stands for."""

    key: str
    title: str
    meaning: str
    over: Literal["end", "run", "most", "total"]
    read: Callable[[Mapping[str, object]], Any] | None = None
    share: bool = False

    def value(self, record: Mapping[str, object]) -> float:
        found = self.read(record) if self.read else record.get(self.key)
        return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else math.nan


def _wasted(record: Mapping[str, object]) -> float | None:
    kept = record.get("kept_rows")
    return 1.0 - kept if isinstance(kept, (int, float)) else None


WATCHED = (
    Watched("entropy", "Entropy", "How undecided the policy is", "end"),
    Watched("kl_start", "KL to the start", "How far it has moved", "end"),
    Watched("clip_fraction", "Clip fraction", "Decisions held back by the trust region", "run", share=True),
    Watched("grad_norm", "Gradient norm", "Before clipping", "end"),
    Watched("learning", "Decisions with gradient", "Share of the decisions that teach", "run", share=True),
    Watched("length", "Length", "Tokens of an answer", "end"),
    Watched("episode_length", "Episode length", "Steps of an episode", "end"),
    Watched("wasted", "Dropped rollouts", "Share of the sampled rows that no update saw", "run", _wasted, share=True),
    Watched("constant_groups", "Groups without signal", "All answers earned the same", "run", share=True),
    Watched("seconds", "Seconds a step", "Sampling and learning", "run"),
    Watched("total_seconds", "Seconds in all", "Sampling and learning", "total", lambda record: record.get("seconds")),
    Watched("memory", "Memory, MiB", "The most that a run held", "most"),
)
WHEN = {"end": "last tenth of the steps", "run": "mean of all steps", "most": "most of all steps", "total": "sum of all steps"}


@dataclass(frozen=True)
class Diagnostic:
    """A metric of all methods: a figure each (interquartile mean over seeds), and curves over steps where they tell something."""

    key: str
    title: str
    meaning: str
    when: str
    share: bool
    values: dict[str, float | None]
    curves: dict[str, dict[str, list[float]]]
    """By method: ``step``, ``middle``, ``low``, ``high``."""


def diagnose(field: Field, task: str) -> list[Diagnostic]:
    """Every metric that some method's runs on the task have."""
    found = []
    for watched in WATCHED:
        values: dict[str, float | None] = {}
        curves = {}
        for contender in field.contenders:
            runs = contender.on(task)
            figures = [figure for run in runs if math.isfinite(figure := _figure(watched, run))]
            values[contender.label] = interquartile_mean(figures) if figures else None
            if watched.over in ("end", "run") and (curve := _curve(watched, runs)):
                curves[contender.label] = curve
        if any(value is not None for value in values.values()):
            when = WHEN[watched.over]
            found.append(Diagnostic(watched.key, watched.title, watched.meaning, when, watched.share, values, curves))
    return found


def _figure(watched: Watched, run: Trained) -> float:
    series = np.array([watched.value(record) for record in run.steps])
    if watched.over == "end":
        series = series[-max(1, round(len(series) * END)) :]
    known = series[np.isfinite(series)]
    if not len(known):
        return math.nan
    if watched.over == "total":
        return float(known.sum())
    return float(known.max() if watched.over == "most" else known.mean())


def _curve(watched: Watched, runs: Sequence[Trained]) -> dict[str, list[float]]:
    """Means of equal stretches of steps, then over seeds; what a step did not report is bridged."""
    length = min((len(run.steps) for run in runs), default=0)
    rows = []
    for run in runs:
        series = np.array([watched.value(record) for record in run.steps[:length]])
        known = np.flatnonzero(np.isfinite(series))
        if len(known):
            rows.append(np.interp(np.arange(length), known, series[known]))
    if length < 2 or not rows:
        return {}
    edges = np.unique(np.linspace(0, length, min(POINTS, length) + 1).round().astype(int))
    stretches = list(itertools.pairwise(edges.tolist()))
    curves = np.array([[row[a:b].mean() for a, b in stretches] for row in rows])
    middle, low, high = iqm_band(curves, draws=200)
    steps = [(a + 1 + b) / 2 for a, b in stretches]
    return {"step": [float(step) for step in steps], "middle": middle.tolist(), "low": low.tolist(), "high": high.tolist()}
