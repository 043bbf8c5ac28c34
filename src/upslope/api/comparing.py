"""Which method is better: runs of several, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upslope.api.argument_checks import DEFAULT_TASK, MODEL, checks
from upslope.api.finding import method
from upslope.errors import UserError
from upslope.experience.given import data_argument, environment_of
from upslope.plain_data import JsonDict, Knobs
from upslope.rewards import kept_or_held
from upslope.runtime.arguments import anything_but, checked, instance, mapping, number, one_or_several, optional, several, text
from upslope.runtime.system_text import with_system_text
from upslope.types import Method

if TYPE_CHECKING:
    from upslope.report.compare.cells import Question
    from upslope.report.compare.comparing import Answer


@checked(
    what=one_or_several(text("methods by name or file, or folders of runs", Method), "methods by name or file, or folders of runs"),
    task=one_or_several(text("a name ('upslope tasks') or a file"), "a name ('upslope tasks') or a file, or a list of them"),
    seeds=instance("a whole number, at least 1", int),
    model=text(MODEL),
    grid=optional(mapping("a dict from knobs or settings to lists of values", several(lambda _, value: value, "a list of values"))),
    reward=anything_but("a name or a list of names", int, float, bytes),
    test_data=text("a file, as text or a path"),
    data=one_or_several(text("the name or file of a dataset"), "the name or file of a dataset, or a list of them"),
    jobs=optional(instance("a whole number, or None", int)),
    k=optional(instance("a whole number, or None", int)),
    threshold=optional(number),
    references=optional(mapping("a dict from tasks to two scores, as in {'reverse': (0.0, 1.0)}", several(number, "two scores"))),
    quiet=instance("True or False", bool),
    figures=instance("True or False", bool),
    **checks("knobs", "take", "out"),
)
def compare(
    what: str | Path | Sequence[str | Path],
    task: str | Sequence[str] = "reverse",
    *,
    seeds: int = 5,
    model: str = "tiny",
    knobs: Knobs | None = None,
    grid: Mapping[str, Sequence[object]] | None = None,
    take: Mapping[str, str] | None = None,
    reward: Any = (),
    test_data: str = "",
    data: str | Sequence[str] = (),
    out: str | Path | None = None,
    jobs: int | None = None,
    k: int | None = None,
    threshold: float | None = None,
    references: Mapping[str, tuple[float, float]] | None = None,
    quiet: bool = True,
    figures: bool = False,
    **settings: Any,
) -> Answer:
    """Which method is better, with error bars; writes ``report.html`` and, beside it, all it says for people and programs.

    Methods are trained, each with the same seeds, tasks, budget and evaluation problems; a run is a process of its own, and runs
    that are there already are kept. Folders of finished runs are compared as they are.

    Args:
        what: Names of methods (compositions and files too), or folders of runs or of a comparison.
        task: One or several, as for `train`.
        seeds: Runs of each method on each task. More tell smaller differences.
        knobs: For all methods; with ``"dhpo:surrogate.sequence.high"`` for one.
        grid: Values of settings, knobs or slots, each choice compared as a method of its own:
            ``{"lr": [1e-4, 3e-4], "surrogate.high": [0.2, 0.28]}``.
        data: For control, one or several datasets to learn from, as for `train`; without a task it is their own environment.
        out: Folder of the comparison; left out, ``runs/compare-<methods>-<task>``.
        jobs: Runs at a time; left out, as many as cores and memory carry.
        k: pass@1 to pass@k of text tasks; 0 is none. (16 for tiny, else 8; none for finished runs)
        threshold: For steps to a score; left out, 80% of the way from the start to the best method's end.
        references: By task, the scores that count as 0 and as 1 when several tasks are taken together.
        figures: Whether to draw the pictures for a paper too, as SVG and PDF in ``figures/``; needs matplotlib.
        settings: As for `train`; ``seed`` is the first of the seeds.

    Returns:
        ``comparison`` with all numbers and sentences, ``path`` of its folder, ``failures`` of runs; ``latex()``, ``csv()`` and
        ``write_figures()`` give its tables, numbers and pictures.
    """
    from upslope.report.compare.command import is_run
    from upslope.report.compare.comparing import Options, compare_methods, compare_runs

    words = [what] if isinstance(what, (str, Path)) else list(what)
    options = Options(_folder(out), jobs, k, references, threshold, quiet, figures)
    if words and is_run(str(words[0])):
        return compare_runs(words, options)
    asked: JsonDict = dict(seeds=seeds, model=model, knobs=knobs, grid=grid, take=take, reward=reward, test_data=test_data)
    asked["data"] = data
    return compare_methods(_question(words, task, **asked, **settings), method, options)


def plan_comparison(
    what: Sequence[str],
    task: str | Sequence[str] = "reverse",
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    quiet: bool = True,
    k: int | None = None,
    threshold: float | None = None,
    references: Mapping[str, tuple[float, float]] | None = None,
    figures: bool = False,
    **asked: Any,
) -> str:
    """What `compare` would run with these arguments, and about how long: as text, without running it."""
    from upslope.report.compare.comparing import Options, dry_run

    options = Options(_folder(out), jobs, k, references, threshold, quiet, figures)
    return dry_run(_question(what, task, **asked), method, options)


def _folder(out: str | Path | None) -> Path | None:
    if out is not None and not str(out).strip():
        raise UserError("--out is empty. Give the folder of the comparison, or leave it out.")
    return None if out is None else Path(out).expanduser()


def _question(
    what: Sequence[str | Path],
    task: str | Sequence[str],
    *,
    seeds: int = 5,
    model: str = "tiny",
    knobs: Knobs | None = None,
    grid: Mapping[str, Sequence[object]] | None = None,
    take: Mapping[str, str] | None = None,
    reward: Any = (),
    test_data: str = "",
    data: str | Sequence[str] = (),
    **settings: Any,
) -> Question:
    from upslope.report.compare.cells import Question

    if "workers" in settings:
        raise UserError(f"workers={settings['workers']}: how many runs go on at a time is jobs in a comparison. Give jobs=.")
    if any(isinstance(word, Method) for word in what):
        raise UserError("give methods by name or file: every run is a process of its own, which must find them again.")
    rewards, held = kept_or_held(reward)
    if held is not None:
        told = f"{rewards[0]!r} is a reward that no file defines, and every run is a process of its own, which must find it again"
        raise UserError(f"{told}. Put it into a file: reward='my.py:score'.")
    tasks = (task,) if isinstance(task, str) else tuple(task)
    if not all(isinstance(each, str) for each in (*tasks, test_data)):
        raise UserError("give tasks and test data by name or file: every run is a process of its own, which must find them again.")
    stored = tuple(data_argument(each)[0] for each in ((data,) if isinstance(data, str) else data) if each)
    if stored and tasks in ((), (DEFAULT_TASK,)):
        tasks = _environment_of_all(stored)
    settings = with_system_text(settings)
    return Question(
        tuple(map(str, what)), tasks, seeds, model, knobs or {}, grid or {}, settings, rewards, test_data, take or {}, stored
    )


def _environment_of_all(data: Sequence[str]) -> tuple[str, ...]:
    """The environment that all these datasets are of."""
    found = dict.fromkeys(environment_of(each, None) for each in data)
    if len(found) > 1:
        raise UserError(f"the datasets are of {' and '.join(found)}; compare those of one environment, or name it with --task.")
    return tuple(found)
