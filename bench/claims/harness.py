"""Claims, declared: which variants are trained on which bed, what is measured, and what is said to be higher than what.

    CLAIM = Claim(
        name="dapo",
        title="dapo finds a rare good arm",
        about="What the paper says, and how this bed shows it.",
        variants={"grpo": Variant("grpo", {"regularize.weight": 0.0}), "dapo": Variant("dapo")},
        bed=TableBed(GoodArms(decoy=0.5), known=0.01),
        settings={"steps": 200, "lr": 0.1, "updates_per_step": 4},
        measures={"final J": final("J"), "mean entropy": average("exact_entropy")},
        statements=[Statement("dapo", "entropy above that of", "grpo", "mean entropy")],
        seeds=20,
        chosen="lr 0.05, 0.1 and 0.2 were tried on seeds 100 to 104.",
    )
    if __name__ == "__main__":
        main(CLAIM)

Seeds are paired: with one seed every variant starts from the same weights, sees the same tasks and the same noise. The page says
what was run and what came out, whatever that is.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from upslope.errors import UserError, did_you_mean

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "claims"
SHARED = "UPSLOPE_CLAIMS_DATA"
"""Names the folder in which processes find datasets that others have made."""
ONE_SETTING = "in this setting"
"""Heading of the results where a claim has no conditions."""

ON_ONE_CORE = {"device": "cpu", "threads": 1}
"""For claims on a small model in a folder: the run would take a GPU and all cores for it, and the claims run side by side."""

Measure = Callable[["Result"], float]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One side of a comparison: a method (a name or a `Method`), its knobs by path, and settings of its own.

    Where a statement is about the method itself, give the variant the method's name: its page quotes those lines.
    """

    method: Any
    knobs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        name = self.method if isinstance(self.method, str) else f"{self.method.name} (composed in the script)"
        changes = [f"{key}={value}" for key, value in (*self.knobs.items(), *self.settings.items())]
        return f"`{' '.join([name, *changes])}`"


@dataclasses.dataclass(frozen=True)
class TextBed:
    """A whole run through `upslope.train`, in a folder that is thrown away. The settings of the claim are those of the run.

    Fields:
        task, model, reward: as for `upslope.train`; a control task such as ``gym:CartPole-v1`` is fine.
        after: a function at the top level of a module that takes the finished run and gives further numbers
            (`Result.extra`), such as `sampled_answers`.
    """

    task: str = "reverse"
    model: str = "tiny"
    reward: str = ""
    after: Callable[[Any], dict[str, float]] | None = None


@dataclasses.dataclass(frozen=True)
class Statement:
    """``ours`` has a higher ``measure`` than ``theirs``; the page's line is ``- ours: words theirs: **verdict** (...)``.

    Fields:
        ours: label of a variant. theirs: label of another, or a number.
        words: what stands between the two, such as "final J above that of"; with a margin, say it ("at most 0.02 below").
        measure: label of a measure.
        higher: false where smaller is what is claimed.
        margin: held if ours is not worse than theirs by more than this.
        conditions: only in these; empty is all.
    """

    ours: str
    words: str
    theirs: str | float
    measure: str
    higher: bool = True
    margin: float = 0.0
    conditions: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Claim:
    """Everything a page says, before it is known.

    Fields:
        name: of the script and the page. title: the page's first line. about: what the paper claims and how the bed shows it.
        bed: a `TableBed`, a `TextBed`, or one that trains a cell itself, such as `ControlBed`.
        settings: of `train_table` or of the run (``steps``, ``lr``, ``tasks_per_step``, ``passes``, ...).
        conditions: by heading, what changes in each: settings, and under ``"bed"`` fields of the bed.
        measures: by label, a function of a `Result`; see `final`, `average`, `steps_until`, `at_step`, `drawdown`, `extra`.
        seeds: how many, from 0; paired.
        chosen: how the setting was chosen. Try on seeds from 100 on (``--first-seed 100``), never on those reported.
        curves: metrics to plot, with titles; empty takes J and entropy, or reward.
        fast: the whole script takes less than about 30 seconds on two cores; `make claims-fast` runs those.
    """

    name: str
    title: str
    about: str
    variants: Mapping[str, Variant]
    bed: Any
    measures: Mapping[str, Measure]
    statements: Sequence[Statement]
    chosen: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    conditions: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=lambda: {ONE_SETTING: {}})
    seeds: int = 10
    curves: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fast: bool = False

    def __post_init__(self) -> None:
        if self.seeds < 1 or not self.variants or not self.measures or not self.statements or not self.conditions:
            raise UserError(f"the claim {self.name!r} needs seeds, variants, measures, statements and conditions.")
        for each in self.statements:
            sides = [side for side in (each.ours, each.theirs) if isinstance(side, str)]
            for wanted, there in (*((side, self.variants) for side in sides), (each.measure, self.measures)):
                if wanted not in there:
                    raise UserError(f"the claim {self.name!r} speaks of {wanted!r}.{did_you_mean(wanted, list(there))}")
            for condition in each.conditions:
                if condition not in self.conditions:
                    raise UserError(f"no condition {condition!r} in {self.name!r}.{did_you_mean(condition, list(self.conditions))}")

    def cells(self, seeds: Iterable[int], steps: int = 0) -> list[Cell]:
        """Every run of the claim; seed by seed, so that a variant's runs do not all come last."""
        made = []
        for condition, changes in self.conditions.items():
            settings = {key: value for key, value in changes.items() if key != "bed"}
            bed = dataclasses.replace(self.bed, **changes.get("bed", {}))
            for seed in seeds:
                for label, variant in self.variants.items():
                    merged = {**self.settings, **settings, **variant.settings} | ({"steps": steps} if steps else {})
                    made.append(Cell(label, variant.method, condition, seed, bed, dict(variant.knobs), merged))
        return made


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run: a method with knobs, in one condition, with one seed."""

    label: str
    method: Any
    condition: str
    seed: int
    bed: Any
    knobs: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gave. ``before`` and ``after``: J of a table, the held-out score of a whole run."""

    cell: Cell
    before: float
    after: float
    seconds: float
    metrics: list[dict[str, Any]]
    extra: dict[str, float] = dataclasses.field(default_factory=dict)

    def curve(self, name: str) -> np.ndarray:
        """A metric over the steps; NaN where a step did not report it."""
        return np.array([record.get(name, np.nan) for record in self.metrics], dtype=float)


# -- measures --------------------------------------------------------------------------------------------------------------


def final(metric: str, last: int = 10) -> Measure:
    """Mean over the last steps."""
    return lambda result: float(np.nanmean(result.curve(metric)[-last:]))


def average(metric: str) -> Measure:
    """Mean over all steps: of J, how fast and how far it learned."""
    return lambda result: float(np.nanmean(result.curve(metric)))


def at_step(metric: str, step: int) -> Measure:
    """Value after this step (the first is 1)."""
    return lambda result: float(result.curve(metric)[step - 1])


def steps_until(metric: str, level: float) -> Measure:
    """The first step at which the metric is at least ``level``; one more than there were steps if never."""

    def measure(result: Result) -> float:
        reached = np.flatnonzero(result.curve(metric) >= level)
        return float(reached[0] + 1 if len(reached) else len(result.metrics) + 1)

    return measure


def drawdown(metric: str) -> Measure:
    """The deepest fall below the highest value before it."""
    return lambda result: float(np.max(np.maximum.accumulate(result.curve(metric)) - result.curve(metric)))


def extra(name: str) -> Measure:
    """A number that `TextBed.after` gave."""
    return lambda result: float(result.extra[name])


def sampled_answers(run: Any, problems: int = 64, samples: int = 64) -> dict[str, float]:
    """For `TextBed.after`: ``pass@1``, ``pass@8``, ``pass@64`` and ``distinct`` right answers per held-out problem."""
    from upslope.rollout.evaluation import evaluate_text

    tokens = run.plan.settings.max_tokens or run.components.task.max_tokens
    found = evaluate_text(run.components.task, run.policy, problems=problems, max_tokens=tokens, samples=samples, temperature=1.0)
    pairs = [zip(said, right, strict=True) for said, right in zip(found.responses, found.correct, strict=True)]
    distinct = [len({text for text, right in each if right}) for each in pairs]
    passed = {f"pass@{k}": found.pass_at(k)[0] for k in (1, 8, 64) if k <= samples}
    return passed | {"distinct": float(np.mean(distinct))}


# -- running ---------------------------------------------------------------------------------------------------------------


def run_cell(cell: Cell) -> Result:
    """Trains one cell."""
    began = time.perf_counter()
    if hasattr(cell.bed, "train"):
        return cell.bed.train(cell)
    if not isinstance(cell.bed, TextBed):
        from beds import train_table

        run = train_table(cell.method, cell.bed, seed=cell.seed, knobs=cell.knobs, **cell.settings)
        after = run.metrics[-1]["J"] if run.metrics else run.before["J"]
        return Result(cell, run.before["J"], after, time.perf_counter() - began, run.metrics)
    import upslope as up

    bed = cell.bed
    with tempfile.TemporaryDirectory() as folder:
        run = up.train(cell.method, bed.task, model=bed.model, reward=bed.reward, knobs=cell.knobs, seed=cell.seed,
                       out=Path(folder) / "run", **cell.settings)  # fmt: skip
        told = bed.after(run) if bed.after is not None else {}
        summary = run.summary
        return Result(cell, summary["score_before"], summary["score_after"], time.perf_counter() - began, run.metrics, told)


def pool(workers: int) -> Executor:
    """Processes of one thread each, which live on from cell to cell: importing torch takes seconds."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read where a child imports torch
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def run_all(cells: Sequence[Cell], workers: int = 2, executor: Executor | None = None) -> list[Result]:
    """All cells in their order, with a progress bar; one worker runs them in this process."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        job = bar.add_task("runs", total=len(cells))
        if workers == 1 and executor is None:
            return [_advancing(bar, job, run_cell(cell)) for cell in cells]
        own = pool(workers) if executor is None else executor
        try:
            futures = [own.submit(run_cell, cell) for cell in cells]
            for future in futures:
                future.add_done_callback(lambda _: bar.advance(job))
            return [future.result() for future in futures]
        finally:
            if executor is None:
                own.shutdown(cancel_futures=True)


def _advancing(bar: Any, job: Any, result: Result) -> Result:
    bar.advance(job)
    return result


def measure_and_write(
    claim: Claim, out: Path, seeds: Sequence[int], steps: int = 0, workers: int = 2, executor: Executor | None = None
) -> Path:
    """Runs a claim and writes ``<name>.md``, ``<name>.png`` and ``data/<name>.json`` below ``out``."""
    from claim_page import write_claim

    began = time.time()
    results = run_all(claim.cells(seeds, steps), workers, executor)
    return write_claim(claim, results, out, seconds=time.time() - began, workers=workers, command=_command(claim, seeds, steps))


def _command(claim: Claim, seeds: Sequence[int], steps: int) -> str:
    changed = [f"--seeds {len(seeds)}"] if len(seeds) != claim.seeds else []
    changed += [f"--first-seed {seeds[0]}"] if seeds[0] else []
    changed += [f"--steps {steps}"] if steps else []
    return f"make claims METHOD={claim.name}" + (f' ARGS="{" ".join(changed)}"' if changed else "")


@contextmanager
def _for_workers(data: Path) -> Iterator[None]:
    """Workers share datasets in a folder, and whoever ends the claim ends them with it: each would go on to the end of its run."""

    def end(number: int, frame: object) -> None:
        for child in multiprocessing.active_children():
            child.kill()
        sys.exit(128 + number)

    handler, folder = signal.signal(signal.SIGTERM, end), os.environ.get(SHARED)
    os.environ[SHARED] = folder or str(data)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        if folder is None:
            del os.environ[SHARED]


def main(claim: Claim, arguments: Sequence[str] | None = None) -> None:
    """The command line of a claim's script."""
    parser = argparse.ArgumentParser(description=claim.title)
    parser.add_argument("--seeds", type=int, default=claim.seeds, help=f"how many ({claim.seeds})")
    parser.add_argument("--first-seed", type=int, default=0, help="to try settings take 100: nothing is written without --out")
    parser.add_argument("--steps", type=int, default=0, help="in place of the claim's own")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each, 1 to 16 (2)")
    parser.add_argument("--out", type=Path, default=None, help="folder of the page (docs/claims)")
    given = parser.parse_args(arguments)
    if not 1 <= given.workers <= 16 or given.seeds < 1:
        parser.error(f"--workers is {given.workers} and --seeds {given.seeds}: 1 to 16 workers, at least one seed.")
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    with tempfile.TemporaryDirectory() as scratch, _for_workers(Path(scratch) / "data"):
        out = given.out or (Path(scratch) if given.first_seed or given.steps else PAGES)
        try:
            path = measure_and_write(claim, out, seeds, given.steps, given.workers)
        except UserError as error:
            sys.exit(str(error))
        print(path.read_text())
