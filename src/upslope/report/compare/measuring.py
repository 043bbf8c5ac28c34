"""From gathered runs to the numbers of a comparison. The terminal, the page, the Markdown and the JSON all read these only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from upslope.plain_data import JsonDict
from upslope.report.compare.diagnostics import Diagnostic, diagnose
from upslope.report.compare.gathering import Contender, Field, Trained
from upslope.report.compare.learned import Learned, learning_headline, measure_learning
from upslope.report.compare.sampling import curve as pass_curve
from upslope.report.compare.spending import at_equal_spending, spent_at
from upslope.report.compare.verdict import Pair, finding, headline, judge
from upslope.report.curves import number
from upslope.runtime.settings import of_domain
from upslope.runtime.statistics import (
    bootstrap_generator,
    interquartile_mean,
    iqm_band,
    performance_profile,
    stratified_bootstrap_interval,
    wilson_interval,
)

AXES = ("steps", "samples", "tokens", "seconds")
CURVE_POINTS = 60
LEVELS = 41
OF_THE_WAY = 0.8
"""Where the threshold of sample efficiency lies between the start and the best method's end, unless it is given."""

References = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; without one where there is one run only."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class TaskScores:
    """A method's runs on a task."""

    seeds: list[int]
    before: list[float]
    after: list[float]
    score: Estimate


@dataclass(frozen=True)
class Standing:
    """A method's final score: interquartile mean over tasks and seeds."""

    label: str
    score: Estimate
    tasks: dict[str, TaskScores]


@dataclass(frozen=True)
class Line:
    """A curve over runs: interquartile mean with its 95% interval."""

    label: str
    x: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Reached:
    """Steps after which half of a method's runs had reached the threshold; None: they have not."""

    label: str
    steps: float | None
    low: float | None
    high: float | None
    reached: int
    of: int


@dataclass(frozen=True)
class Efficiency:
    """Who gets to a score first."""

    threshold: float | None
    """None where none was given and nobody has learned: there is nothing to get to."""
    given: bool
    methods: list[Reached]


@dataclass(frozen=True)
class Comparison:
    """Everything a comparison says."""

    title: str
    finding: str
    """What was found and what was not: the first sentence of every report."""
    learning: str
    """Whether anything was learned at all."""
    headline: str
    """Who beats whom. Where nothing was learned it says that first."""
    sentences: list[str]
    obstacles: list[str]
    notes: list[str]
    tasks: list[str]
    score_name: dict[str, str]
    normalised: dict[str, tuple[float, float]]
    """The scores that count as 0 and as 1 on each task; empty where scores are as they are."""
    paired: bool
    learned: list[Learned]
    """By method and task, the end against the start."""
    standings: list[Standing]
    pairs: list[Pair]
    curves: dict[str, dict[str, list[Line]]]
    """By task and axis."""
    profiles: list[Line]
    efficiency: dict[str, Efficiency]
    passes: dict[str, list[Line]]
    """By task, pass@k over k."""
    diagnostics: dict[str, list[Diagnostic]]
    settings: dict[str, JsonDict]
    """By task, what all its runs share."""
    conditions: str
    """What a run was: how many there are, of what length, of which model, and on what they were judged."""
    command: str
    """What makes this comparison again; empty where finished runs were compared."""
    runs: dict[str, list[str]]
    failures: list[str]

    @property
    def labels(self) -> list[str]:
        return [each.label for each in self.standings]

    def record(self) -> JsonDict:
        """As plain data; what is not finite is null."""
        return _plain(dataclasses.asdict(self))


def measure(
    field: Field,
    *,
    references: References | None = None,
    threshold: float | None = None,
    failures: Sequence[str] = (),
    command: str = "",
) -> Comparison:
    """All numbers of a comparison.

    Args:
        references: by task, the scores that count as 0 and as 1 when tasks are taken together.
        threshold: of sample efficiency, as a score; left out, 80% of the way from the start to the best method's end.
        command: what made the runs, for whoever wants to repeat it.
    """
    scales = _scales(field, references or {})
    standings = [_standing(each, field, scales) for each in field.contenders]
    scores = {each.label: [each.tasks[task].after for task in field.tasks if task in each.tasks] for each in standings}
    scaled = {
        each.label: [_scaled(each.tasks[task].after, scales.get(task)) for task in field.tasks if task in each.tasks]
        for each in standings
    }
    pairs = [] if field.obstacles else judge(scores, field.paired, scaled)
    told = f"Not ranked: {'; '.join(field.obstacles)}." if field.obstacles else headline(pairs, [each.label for each in standings])
    learned = measure_learning(field)
    learning = learning_headline(learned)
    order = {each.label: place for place, each in enumerate(standings)}
    if not field.obstacles:
        standings = sorted(standings, key=lambda each: (-each.score.value, order[each.label]))
    answer = told if any(each.outcome == "learned" for each in learned) else f"{learning} {told}"
    return Comparison(
        title=f"{', '.join(order)} on {', '.join(field.tasks)}",
        finding=finding(learning, answer, pairs),
        learning=learning,
        headline=answer,
        sentences=[pair.sentence for pair in pairs],
        obstacles=field.obstacles,
        notes=[*field.notes, *_threshold_notes(field, threshold), *at_equal_spending(field)],
        tasks=field.tasks,
        score_name={task: field.runs(task)[0].score_name for task in field.tasks},
        normalised=scales,
        paired=field.paired,
        learned=learned,
        standings=standings,
        pairs=pairs,
        curves={task: {axis: _lines(field, task, axis) for axis in AXES} for task in field.tasks},
        profiles=[] if field.obstacles else _profiles(scaled),
        efficiency={task: _efficiency(field, task, threshold, learned) for task in field.tasks},
        passes={task: lines for task in field.tasks if (lines := _passes(field, task))},
        diagnostics={task: diagnose(field, task) for task in field.tasks},
        settings={task: _shared(field.runs(task)) for task in field.tasks},
        conditions=_conditions(field),
        command=command,
        runs={each.label: [str(run.path) for run in each.runs] for each in field.contenders},
        failures=list(failures),
    )


# -- final scores ----------------------------------------------------------------------------------------------------------


def _scales(field: Field, references: References) -> dict[str, tuple[float, float]]:
    """What counts as 0 and as 1 on each task. Accuracies stand as they are; returns go from the start to the best run's end."""
    found: dict[str, tuple[float, float]] = {}
    for task in field.tasks:
        runs = field.runs(task)
        if task in references:
            found[task] = references[task]
        elif len(field.tasks) > 1 and runs[0].control:
            start, best = float(np.mean([run.before for run in runs])), max(run.after for run in runs)
            found[task] = (start, best if best > start else start + 1.0)
    return found


def _scaled(values: Sequence[float], scale: tuple[float, float] | None) -> list[float]:
    low, high = scale or (0.0, 1.0)
    return [(value - low) / (high - low) for value in values]


def _standing(contender: Contender, field: Field, scales: Mapping[str, tuple[float, float]]) -> Standing:
    tasks, strata = {}, []
    for task in field.tasks:
        runs = contender.on(task)
        if runs:
            after = [run.after for run in runs]
            seeds, before = [run.seed for run in runs], [run.before for run in runs]
            tasks[task] = TaskScores(seeds, before, after, _with_width(estimate([after]), [runs]))
            strata.append(_scaled(after, scales.get(task)))
    return Standing(contender.label, _with_width(estimate(strata), map(contender.on, tasks)), tasks)


def _with_width(found: Estimate, tasks: Iterable[Sequence[Trained]]) -> Estimate:
    """Accuracies that are the same in every run leave open what the problems leave open: the interval is then over those."""
    runs = [run for some in tasks for run in some]
    problems = [int(run.evaluations[-1].get("problems") or 0) if run.evaluations else 0 for run in runs]
    if found.low is None or found.low != found.high or any(run.control for run in runs) or not min(problems):
        return found
    count = min(problems)
    return Estimate(found.value, *wilson_interval(min(count, max(0, round(found.value * count))), count))


def estimate(strata: Sequence[Sequence[float]]) -> Estimate:
    """Interquartile mean of all runs of all tasks, with a stratified bootstrap interval over seeds."""
    value = interquartile_mean(np.concatenate([np.asarray(each) for each in strata]))
    if max(map(len, strata)) < 2:
        return Estimate(value, None, None)
    return Estimate(value, *stratified_bootstrap_interval(strata))


def _profiles(scaled: Mapping[str, Sequence[Sequence[float]]]) -> list[Line]:
    every = np.concatenate([np.asarray(runs) for tasks in scaled.values() for runs in tasks])
    low, high = float(every.min()), float(every.max())
    room = (high - low) * 0.05 or 0.05
    levels = np.linspace(low - room, high + room, LEVELS)
    found = []
    for label, tasks in scaled.items():
        rng = bootstrap_generator(0)
        runs = [np.asarray(each) for each in tasks]
        drawn = np.array([
            performance_profile(np.concatenate([each[rng.integers(0, len(each), len(each))] for each in runs]), levels)
            for _ in range(400)
        ])  # fmt: skip
        below, above = np.quantile(drawn, [0.025, 0.975], axis=0)
        middle = performance_profile(np.concatenate(runs), levels)
        found.append(Line(label, levels.tolist(), middle.tolist(), below.tolist(), above.tolist()))
    return found


# -- curves ----------------------------------------------------------------------------------------------------------------


def _lines(field: Field, task: str, axis: str) -> list[Line]:
    """Each method's held-out score along an axis, as far as all its runs went."""
    found = []
    for contender in field.contenders:
        runs = [run for run in contender.on(task) if len(run.evaluations) > 1]
        if not runs:
            continue
        spent = [spent_at(run, axis) for run in runs]
        same = all(len(each) == len(spent[0]) and np.array_equal(each, spent[0]) for each in spent)
        grid = spent[0] if same else np.linspace(max(each[0] for each in spent), min(each[-1] for each in spent), CURVE_POINTS)
        curves = [np.interp(grid, x, [each["score"] for each in run.evaluations]) for x, run in zip(spent, runs, strict=True)]
        found.append(_line(contender.label, grid, np.array(curves)))
    return found


def _line(label: str, x: np.ndarray, curves: np.ndarray) -> Line:
    middle, low, high = iqm_band(curves)
    return Line(label, x.tolist(), middle.tolist(), low.tolist(), high.tolist())


def _passes(field: Field, task: str) -> list[Line]:
    """pass@k where every method has been sampled, as far as all its runs have been."""
    found = []
    for contender in field.contenders:
        curves = [pass_curve(run.sampled) for run in contender.on(task) if run.sampled]
        ks = sorted(set.intersection(*map(set, curves))) if curves else []
        if len(ks) > 1:
            found.append(_line(contender.label, np.array(ks, dtype=float), np.array([[each[k] for k in ks] for each in curves])))
    return found


# -- sample efficiency -----------------------------------------------------------------------------------------------------


def _efficiency(field: Field, task: str, threshold: float | None, learned: Sequence[Learned]) -> Efficiency:
    aim = threshold
    if aim is None:
        if not any(each.outcome == "learned" for each in learned if each.task == task):
            return Efficiency(None, False, [])
        start = _start(field, task)
        best = max(interquartile_mean([run.after for run in each.on(task)]) for each in field.contenders if each.on(task))
        aim = start + OF_THE_WAY * max(best - start, 0.0)
    return Efficiency(aim, threshold is not None, [_reached(each, task, aim) for each in field.contenders if each.on(task)])


def _start(field: Field, task: str) -> float:
    return float(np.mean([run.before for run in field.runs(task)]))


def _threshold_notes(field: Field, threshold: float | None) -> list[str]:
    """A threshold that runs have before their first step tells nothing about speed."""
    if threshold is None:
        return []
    aim, told = f"--threshold {number(threshold)}", "which runs have before their first step. Give one above it, or none."
    below = {task: start for task in field.tasks if (start := _start(field, task)) > threshold}
    return [f"{aim} is below the start on {task} ({number(start)}), {told}" for task, start in below.items()]


def _reached(contender: Contender, task: str, aim: float) -> Reached:
    steps = np.array([steps_to(run, aim) for run in contender.on(task)])
    rng = bootstrap_generator(0)
    drawn = np.sort([half_of(steps[rng.integers(0, len(steps), len(steps))]) for _ in range(2000)])
    low, high = drawn[49], drawn[1949]  # no mean of neighbours: one of them may be "never"
    ends = (low, high) if len(steps) > 1 else (math.inf, math.inf)
    middle, below, above = (float(value) if math.isfinite(value) else None for value in (half_of(steps), *ends))
    return Reached(contender.label, middle, below, above, int(np.isfinite(steps).sum()), len(steps))


def steps_to(run: Trained, aim: float) -> float:
    """The first evaluation at which a run had the score; infinite if none."""
    return next((float(each["step"]) for each in run.evaluations if each["score"] >= aim), math.inf)


def half_of(steps: np.ndarray) -> float:
    """The step by which half of the runs were there. All runs end at the same step, so those that never were come last."""
    return float(np.sort(steps)[(len(steps) + 1) // 2 - 1])


# -- settings --------------------------------------------------------------------------------------------------------------


def _shared(runs: Sequence[Trained]) -> JsonDict:
    """Settings that are the same in all runs of a task."""
    first = {"model": runs[0].table["model"], **runs[0].settings}
    same = {
        key: value
        for key, value in first.items()
        if all({"model": run.table["model"], **run.settings}.get(key) == value for run in runs)
    }
    mine = of_domain(same, "control" if runs[0].control else "text")
    return {key: value for key, value in mine.items() if value not in (None, "")}


def _conditions(field: Field) -> str:
    """What all runs share, task by task where tasks differ in it."""
    told = {task: _condition(field, task) for task in field.tasks}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"on {task}: {words}" for task, words in told.items())


def _condition(field: Field, task: str) -> str:
    runs, shared = field.runs(task), _shared(field.runs(task))
    counts = [len(each.on(task)) for each in field.contenders]
    seeds = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    told = [f"{seeds} seed{'s' if seeds != '1' else ''} each"]
    told += [f"{shared['steps']} steps"] if "steps" in shared else []
    if not runs[0].control:
        if "tasks_per_step" in shared and "samples_per_task" in shared:
            told.append(f"{shared['tasks_per_step']} x {shared['samples_per_task']} answers a step")
        told += [f"model {_model_name(str(shared['model']))}"] if shared.get("model") else []
        told += [f"warm-started to {shared['warm_start']:g}"] if shared.get("warm_start") else []
    last = [run.evaluations[-1] for run in runs if run.evaluations]
    judged = {int(each.get("problems") or each.get("episodes") or 0) for each in last}
    if len(judged) == 1 and 0 not in judged:
        greedy = ", one greedy answer each" if runs[0].score_name == "accuracy" else ""
        told.append(f"judged on {judged.pop()} {'episodes' if runs[0].control else 'held-out problems'}{greedy}")
    builds = {(run.table.get("upslope"), run.table.get("build", {}).get("torch")) for run in runs}
    if len(builds) == 1 and all(build := builds.pop()):
        told.append(f"upslope {build[0]}, torch {build[1]}")
    return ", ".join(told)


def _model_name(model: str) -> str:
    """A model without the folders of whoever made the comparison."""
    return PurePath(model).name if PurePath(model).is_absolute() else model


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
