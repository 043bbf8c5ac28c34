"""A comparison from the question to the answer: check, say how long, run what is missing, measure, write."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from upslope.errors import Remark, UserError
from upslope.plan import checked_table
from upslope.policies.reward_runs import scoring_head
from upslope.report.compare.cells import Cell, Checked, FindMethod, Question, check, is_comparison, read_command, write_question
from upslope.report.compare.figures import check_figures, write_figures
from upslope.report.compare.gathering import BUDGET, Field, expand, gather
from upslope.report.compare.latex import latex
from upslope.report.compare.markdown import markdown
from upslope.report.compare.measuring import Comparison, References, measure
from upslope.report.compare.numbers import numbers
from upslope.report.compare.page import page
from upslope.report.compare.running import LOCK, Failure, Interrupted, only_one, room_for, run_cells, sort_out, threads_of
from upslope.report.compare.sampling import default_k, missing, sample_all
from upslope.report.compare.timing import WORTH_A_TRIAL, Cost, cost
from upslope.report.compare.variants import varied_settings
from upslope.report.compare.verdict import ALPHA
from upslope.report.compare.watching import Watching, name
from upslope.report.words import clock
from upslope.runtime.files import write_json, write_text
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.significance import least_p

FIGURES = "figures"
"""The folder of the pictures in that of a comparison."""


@dataclass(frozen=True)
class Options:
    """How a comparison is made and told; none of it changes a run."""

    out: Path | None = None
    jobs: int | None = None
    """Runs at a time; as many as cores and memory carry if left out."""
    k: int | None = None
    """pass@1 to pass@k of text tasks; 0 is none."""
    references: References | None = None
    threshold: float | None = None
    quiet: bool = False
    figures: bool = False
    """Whether to draw the pictures as SVG and PDF."""

    def flags(self) -> str:
        """As flags, those that change the numbers of a report."""
        words = [] if self.k is None else ["--k", str(self.k)]
        words += [] if self.threshold is None else ["--threshold", f"{self.threshold:g}"]
        for task, (low, high) in (self.references or {}).items():
            words += ["--reference", quote(f"{task}={low:g},{high:g}")]
        return " ".join(words)


@dataclass(frozen=True)
class Answer:
    """What came of a comparison."""

    comparison: Comparison
    path: Path
    """The folder with ``report.html``, ``report.md``, ``table.tex``, ``numbers.csv`` and ``comparison.json``."""
    failures: tuple[Failure, ...] = ()

    def latex(self) -> str:
        """The tables for a paper, as in ``table.tex``."""
        return latex(self.comparison)

    def csv(self) -> str:
        """Every number, as in ``numbers.csv``."""
        return numbers(self.comparison)

    def write_figures(self, folder: str | Path | None = None) -> list[Path]:
        """Draws every picture as SVG and PDF, into ``figures/`` of the comparison if no folder is given; needs matplotlib."""
        return write_figures(self.comparison, self.path / FIGURES if folder is None else Path(folder))


def compare_methods(question: Question, find: FindMethod, options: Options) -> Answer:
    """Trains every cell that is not there yet and compares them.

    Raises:
        Interrupted: after Ctrl-C; what is finished is kept, and the same call goes on.
    """
    if options.figures:
        check_figures()
    checked, root, threads = check(question, find), options.out or question.default_folder(), threads_of(question)
    cells = checked.cells
    check_folder(root)
    _warn_of_budgets(question)
    _warn_of_few_seeds(question, len(checked.cells))
    with only_one(root) as lock:
        finished, to_run = sort_out(cells, root, checked)
        write_question(root, question, cells, options.flags())
        price = _price(question, finished, to_run, root, threads, options)
        workers = options.jobs or room_for(threads, price.memory)
        _say(options, plan_line(question, checked, len(finished), to_run, price, workers))
        seconds = price.of(to_run) / max(len(to_run), 1)
        with Watching(len(cells), len(finished), min(workers, max(len(to_run), 1)), seconds, options.quiet) as watching:
            failures = run_cells(to_run, root, workers=workers, threads=threads, watching=watching, keep_open=lock)
            done = [root / cell.folder for cell in cells if (root / cell.folder / "summary.json").is_file()]
            if not done:
                raise UserError(f"every run failed. The first: {failures[0].why} ({failures[0].log})")
            text = [path for path in done if checked.score[_task_of(path, cells)] == "accuracy" and _answers(path)]
            k = default_k(question.model) if options.k is None else options.k
            notes = _sampled(text, k, workers, threads, watching)
    told = [f"{name(each.cell)} failed: {each.why} ({each.log})" for each in failures]
    field = gather([(root / cell.folder, cell.label) for cell in cells if (root / cell.folder / "run.toml").is_file()])
    return _answer(field, root, options, failures=failures, told=told, notes=notes)


def compare_runs(folders: Sequence[str | Path], options: Options) -> Answer:
    """Compares runs that are finished."""
    if options.figures:
        check_figures()
    found = [folder for folder in folders if not _is_only_a_report(Path(folder))]
    paths = expand(found)
    notes: list[str] = []
    if options.k:
        done = [path for path, _ in paths if (path / "summary.json").is_file() and _answers(path)]
        with Watching(len(done), 0, 1, quiet=options.quiet) as watching:
            notes = _sampled(done, options.k, options.jobs or 1, 1, watching)
    field = gather(paths)
    alone = Path(found[0]) if len(found) == 1 and is_comparison(Path(found[0])) else None
    root = options.out or alone or _folder_for(field)
    check_folder(root)
    return _answer(field, root, options, notes=notes)


def dry_run(question: Question, find: FindMethod, options: Options) -> str:
    """What would be run, without running it but for a short run that is timed."""
    checked, root, threads = check(question, find), options.out or question.default_folder(), threads_of(question)
    check_folder(root)
    _warn_of_budgets(question)
    _warn_of_few_seeds(question, len(checked.cells))
    finished, to_run = sort_out(checked.cells, root, checked)
    price = _price(question, finished, to_run, root, threads, options)
    workers = options.jobs or room_for(threads, price.memory)
    lines = [cell.shown(root / cell.folder) for cell in to_run]
    return "\n".join([plan_line(question, checked, len(finished), to_run, price, workers), *lines])


def plan_line(question: Question, checked: Checked, kept: int, to_run: Sequence[Cell], price: Cost, workers: int) -> str:
    """How many runs, how many at a time, about how long."""
    labels = len({cell.label for cell in checked.cells})
    count = f"{len(checked.cells)} runs ({labels} method{'s' if labels != 1 else ''} x "
    count += f"{len(question.beds)} tasks x " if len(question.beds) > 1 else ""
    count += f"{question.seeds} seed{'s' if question.seeds != 1 else ''})"
    count += f", {kept} of them finished before" if kept else ""
    if not to_run:
        return f"{count}: nothing to run"
    seconds = price.of(to_run)
    how = "timed on a short run" if price.timed else "as the finished ones took"
    long = f"about {clock(seconds / min(workers, len(to_run)))} ({how})" if seconds else "too short to be worth timing first"
    return f"{count}, {min(workers, len(to_run))} at a time; {long}"


def _warn_of_budgets(question: Question) -> None:
    """Hours before the report would say it: what a grid makes unequal is not ranked."""
    unequal = [name for name in varied_settings(question.grid) if name in (*BUDGET, "eval_problems")]
    if unequal:
        what = "how many problems a run is judged on" if unequal == ["eval_problems"] else "what a run may spend"
        told = (
            f"--grid {unequal[0]} changes {what}: such runs are shown side by side, with their curves against samples and tokens, "
        )
        warnings.warn(Remark(f"{told}and not ranked."), stacklevel=2)


def _warn_of_few_seeds(question: Question, cells: int) -> None:
    """Before the first run: so few seeds that no outcome could be a win."""
    tasks = len(question.beds)
    contenders = cells // (question.seeds * tasks)
    pairs = contenders * (contenders - 1) // 2
    if not pairs or least_p(question.seeds, tasks) * pairs <= ALPHA:
        return
    enough = next(seeds for seeds in itertools.count(question.seeds) if least_p(seeds, tasks) * pairs <= ALPHA)
    p = min(1.0, least_p(question.seeds, tasks) * pairs)
    adjusted = f", adjusted for {pairs} pairs" if pairs > 1 else ""
    told = (
        f"with {question.seeds} seed{'s' if question.seeds > 1 else ''} nobody can win: if all runs of one method beat all of "
        f"another's, p would be {p:.2g}{adjusted}, and at most {ALPHA} is a win. --seeds {enough} are the fewest that can decide."
    )
    warnings.warn(Remark(told), stacklevel=3)


def _price(
    question: Question, finished: Sequence[Cell], to_run: Sequence[Cell], root: Path, threads: int, options: Options
) -> Cost:
    if not finished and any(int(cell.settings["steps"]) > WORTH_A_TRIAL for cell in to_run):
        _say(options, f"{len(to_run)} runs to make; timing a short one first")
    return cost(to_run, finished, root, threads)


def _sampled(paths: Sequence[Path], k: int, workers: int, threads: int, watching: Watching) -> list[str]:
    left = missing(paths, k) if k else []
    return sample_all(left, k, workers=workers, threads=threads, say=watching.line) if left else []


def _answer(
    field: Field,
    root: Path,
    options: Options,
    *,
    failures: Sequence[Failure] = (),
    told: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Answer:
    field.notes.extend(notes)
    command = read_command(root)
    found = measure(field, references=options.references, threshold=options.threshold, failures=told, command=command)
    write_text(root / "report.html", page(found))
    write_text(root / "report.md", markdown(found))
    write_text(root / "table.tex", latex(found))
    write_text(root / "numbers.csv", numbers(found))
    write_json(root / "comparison.json", found.record())
    answer = Answer(found, root, tuple(failures))
    if options.figures or _has_figures(root):
        answer.write_figures()
    return answer


def _has_figures(root: Path) -> bool:
    """Pictures of an earlier answer are drawn anew: they would show other numbers than the page beside them."""
    return any((root / FIGURES).glob("score*.svg")) and importlib.util.find_spec("matplotlib") is not None


def check_folder(root: Path) -> None:
    """Refuses to write a comparison among files that are somebody else's."""
    if is_comparison(root) or _is_only_a_report(root):
        return
    try:
        there = sorted(entry.name for entry in root.iterdir() if entry.name != LOCK)
    except FileNotFoundError:
        return
    except OSError as problem:
        raise UserError(f"--out {str(root)[:100]!r} cannot be used: {problem.strerror}. Give a new or empty folder.") from None
    if there:
        shown = ", ".join(there[:3]) + (", ..." if len(there) > 3 else "")
        raise UserError(
            f"--out {root} is not empty ({shown}) and no comparison. Give a new or empty folder, such as {root / 'comparison'}."
        )


def _folder_for(field: Field) -> Path:
    import re

    names = "-".join([*(each.label for each in field.contenders), *field.tasks])
    return Path("runs") / ("comparison-" + re.sub(r"[^\w.+-]+", "-", names.replace("=", "")))[:120]


def _is_only_a_report(path: Path) -> bool:
    """The folder of an earlier comparison of finished runs: ``runs/*`` finds it beside them."""
    return (path / "comparison.json").is_file() and not is_comparison(path)


def _answers(path: Path) -> bool:
    """Whether it is a run that can be sampled for pass@k; of one that cannot be read `gather` says why it is left out."""
    try:
        table = checked_table(RunFolder.open(path))
        return bool(table["domain"] == "text") and scoring_head(table) is None
    except UserError:
        return False


def _task_of(path: Path, cells: Sequence[Cell]) -> str:
    return next(cell.bed for cell in cells if cell.folder == path.name)


def _say(options: Options, text: str) -> None:
    if not options.quiet:
        print(text, file=sys.stderr, flush=True)


__all__ = ["Answer", "Interrupted", "Options", "compare_methods", "compare_runs", "dry_run"]
