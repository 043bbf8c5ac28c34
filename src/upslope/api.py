"""What ``import upslope as up`` gives: names become methods here, and a finished run gets its report."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upslope.datasets.api import describe, load_data, make_data
from upslope.errors import MethodError, Remark, UserError, did_you_mean
from upslope.experience.given import data_argument, environment_of
from upslope.fields import shown
from upslope.given import model_argument, objects_again, task_argument
from upslope.methods import RUN_FILE, catalogue, check_own_name, compose, composed_of, find
from upslope.methods.control.presets import choose
from upslope.plain_data import JsonDict, Knobs
from upslope.plan import Plan, checked_table, method_of_run
from upslope.rewards import kept_or_held
from upslope.run import Run, Watcher, dry_run
from upslope.run import resume as resume_run
from upslope.run import start as start_run
from upslope.run.callbacks import checked_callbacks
from upslope.run.listeners import Listeners
from upslope.runtime.arguments import (
    anything_but,
    checked,
    folder,
    instance,
    mapping,
    number,
    one_or_several,
    optional,
    several,
    text,
)
from upslope.runtime.python_objects import PythonObjects
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.settings import Settings, check_names
from upslope.runtime.system_text import with_system_text
from upslope.runtime.trackers import check_trackers
from upslope.runtime.user_code import load_file
from upslope.sizes.estimate import Estimate
from upslope.tasks import list_tasks
from upslope.tasks.gym_make import reset_free
from upslope.types import Method

if TYPE_CHECKING:
    from upslope.report.compare.cells import Question
    from upslope.report.compare.comparing import Answer

__all__ = [
    "compare", "compose", "describe", "estimate", "list_methods", "list_tasks", "load", "load_data", "make_data", "method",
    "plan_comparison", "reset_free", "resume", "train",
]  # fmt: skip

METHOD = "a method, its name, a composition such as 'dhpo+high-entropy', a file such as 'mine.py', or the run.toml of a run"
TASK = "a name ('upslope tasks'), a file, or the problems or the environment themselves"
MODEL = "'tiny', 'smollm2', or the folder of a model or a run; compare trains in processes of their own, which load it there"
DEFAULT_TASK = "reverse"
CHECKS: JsonDict = {
    "out": optional(folder("a folder, as text or a path, or None")),
    "knobs": optional(mapping("a dict from paths to values, as in {'surrogate.high': 0.3}, or None")),
    "take": optional(mapping("a dict from slots to methods, as in {'surrogate': 'dapo'}, or None", text("the name of a method"))),
    "watcher": optional(instance("an upslope.Watcher, or None", Watcher)),
    "path": folder("the folder of a run, as text or a path"),
    "trust": instance("True or False", bool),
}
"""Of arguments that several functions have."""


def _checks(*names: str) -> JsonDict:
    return {name: CHECKS[name] for name in names}


@checked(family=text("the name of a family of methods, such as 'rlvr'"))
def list_methods(family: str = "") -> list[Method]:
    """The catalogue, or one family of it."""
    found = [each for each in catalogue().values() if not family or each.family == family]
    if not found:
        families = sorted({each.family for each in catalogue().values()})
        raise UserError(f"no family named {family!r}.{did_you_mean(family, families)} There are {', '.join(families)}.")
    return found


@checked(spec=text(METHOD, Method), **_checks("take"))
def method(spec: str | Method, take: Mapping[str, str] | None = None) -> Method:
    """A method by name (``"dhpo"``), from a file (``"mine.py"``, ``"mine.py:name"``), of a run (``"runs/mine-0/run.toml"``) or by
    composition (``"dhpo+mine.py"``).

    Args:
        take: for a composition, which method wins a slot that two of them fill: ``{"surrogate": "dapo"}``.
    """
    if isinstance(spec, Method):
        return spec
    words = composed_of(spec)
    found = [_by_word(word) for word in words]
    if len(found) == 1:
        return found[0]
    called = {word: each.name for word, each in zip(words, found, strict=True)}
    return compose(found, {slot: called.get(name, name) for slot, name in (take or {}).items()})


def _by_word(word: str) -> Method:
    if word.endswith(RUN_FILE):
        return method_of_run(word)
    return _from_file(word) if word.endswith(".py") or ".py:" in word else find(word)


def _from_file(spec: str) -> Method:
    path, _, name = spec.partition(":")
    module = load_file(path)
    # Methods it merely imported, to derive from, are not its own.
    found = {
        value.name: value for value in vars(module).values() if isinstance(value, Method) and catalogue().get(value.name) != value
    }
    if not found:
        raise MethodError(f"{path} defines no Method. Derive one: my_method = grpo.derive(name='my-method', ...).")
    if name:
        if name not in found:
            raise MethodError(f"{path} defines no method named {name!r}.{did_you_mean(name, found)} It has {', '.join(found)}.")
        check_own_name(found[name])
        return found[name]
    if len(found) > 1:
        raise MethodError(f"{path} defines {len(found)} methods; say which: {', '.join(f'{path}:{each}' for each in found)}.")
    (own,) = found.values()
    check_own_name(own)
    return own


_OF_A_RUN: dict[str, Any] = dict(
    method=text(METHOD, Method),
    task=anything_but(TASK, int, float, bytes, type(None)),
    reward=anything_but("a name, a function, a list of them, or {name: (function or name, weight)}", int, float, bytes),
    test_data=anything_but("a file, or the problems themselves", int, float, bytes),
    data=anything_but("the name of a dataset, a file, or episodes themselves", int, float, bytes),
    preset=text("the name of a preset, such as 'rl-zoo'"),
)
"""What `train` and `estimate` are both given."""


@checked(
    **_OF_A_RUN,
    **_checks("knobs", "out", "take", "watcher"),
)
def train(
    method: str | Method = "dhpo",
    task: Any = DEFAULT_TASK,
    *,
    model: Any = "tiny",
    knobs: Knobs | None = None,
    reward: Any = (),
    test_data: Any = "",
    data: Any = "",
    out: str | Path | None = None,
    trackers: Sequence[Any] = (),
    callbacks: Sequence[Any] = (),
    take: Mapping[str, str] | None = None,
    preset: str = "",
    watcher: Watcher | None = None,
    **settings: Any,
) -> Run:
    """Trains a policy and returns the finished run. Torch's threads are then what they were before.

    Args:
        method: A method, its name, a composition of names or a file. `list_methods` lists the names.
        task: ``"reverse"``, ``"reasoning-gym:chain_sum"``, ``"gym:CartPole-v1"`` or the path of a file of problems (``.jsonl``,
            ``.csv``, ``.parquet``, ...); `list_tasks` lists the names. Or the problems themselves: a list of dicts with ``prompt``
            and ``answer``, a pandas or `datasets` table, anything that yields dicts; the run keeps a copy. Or a `TextTask`, a
            ``gymnasium.Env``, its class, or a function that makes one.
        model: ``"tiny"``, ``"smollm2"``, a folder that transformers can load or a run's, a `Run`; or ``(model, tokenizer)`` of
            `transformers`, of which a copy is trained and kept with the run (``run.policy.model`` is the trained one). In control a
            ``torch.nn.Module`` of your own from observations ``[B, ...]`` to features ``[B, F]``, of which copies are trained with
            layers for actor and critics behind them; no folder can keep its code, so `resume` and `load` need it again.
        knobs: Of the method's parts, by path: ``{"surrogate.high": 0.3}``.
        reward: For text: a name as on the command line (``"exact"``, ``"length:max=200*0.1"``, ``"file.py:function"``), a function,
            a list of them, or ``{"name": (function or name, weight)}``. A function that no file defines cannot be kept with a run:
            `resume` needs it again. Data with answers and no reward get the one that finds most sampled answers right.
        test_data: For a table of problems: a second one to evaluate on. Without it a fifth of the rows is held out.
        data: For control: stored experience to learn from, as `load_data` takes it: a name in ``data/``, a folder, ``FILE.npz``,
            ``FILE.hdf5``, ``minari:ID``, or the episodes themselves. Methods made for datasets then never act, unless
            ``offline_steps`` says how many steps come first. Without a task it is the environment that the dataset names.
        out: Folder of the run; left out, ``runs/<method>-<task>-<seed>``.
        trackers: Names (``"tensorboard"``, ``"wandb:project=mine,group=sweep"``, ``"trackio"``, ``"mlflow"``) and objects with
            ``log(step, metrics)`` (`upslope.Tracker`).
        callbacks: Objects with ``on_step``, ``on_evaluation``, ``on_checkpoint`` or ``on_end`` (`upslope.Callback`); one that
            raises `upslope.StopTraining` ends the run early.
        take: As in `method`.
        preset: ``"rl-zoo"``: settings for this environment as rl-baselines3-zoo has them. What is given besides wins.
        watcher: Is told what happens (`upslope.Watcher`); the command line's live table is one.
        settings: Any field of `upslope.runtime.settings.Settings`: ``steps=60, seed=1, lr=3e-4, ...``.

    Raises:
        UserError: before the first rollout, if something asked for does not exist, does not fit or cannot be had.

    Example:
        >>> import upslope as up, tempfile
        >>> run = up.train("grpo", "reverse:length=2", steps=3, tasks_per_step=4, eval_problems=20, out=tempfile.mkdtemp())
        >>> len(run.metrics)
        3
    """
    listeners = Listeners(watcher, checked_callbacks(callbacks), check_trackers(trackers))
    names = tuple(each for each in listeners.given if isinstance(each, str))
    plan, knobs = _planned(method, task, model, knobs, reward, test_data, data, take, preset, settings, names)
    return _reported(start_run(plan, knobs, out, listeners))


@checked(
    **_OF_A_RUN,
    memory=text("a size of memory, such as '80GB'"),
    **_checks("knobs", "out", "take"),
)
def estimate(
    method: str | Method = "dhpo",
    task: Any = DEFAULT_TASK,
    *,
    model: Any = "tiny",
    knobs: Knobs | None = None,
    reward: Any = (),
    test_data: Any = "",
    data: Any = "",
    out: str | Path | None = None,
    take: Mapping[str, str] | None = None,
    preset: str = "",
    memory: str = "",
    **settings: Any,
) -> Estimate:
    """What `train` would take with the same arguments: parameters, memory by kind, disk, tokens of a step; and whether it fits.

    Reads the model's configuration and the headers of its files; no weights are loaded and nothing is written.

    Args:
        memory: Of a device that need not be here, as in ``"80GB"``, for ``device="cuda"`` on a machine without a GPU. Left out, it
            is this machine's.

    Example:
        >>> import upslope as up
        >>> found = up.estimate("grpo", "reverse", device="cuda", memory="8GB")
        >>> found.fits, found.trained
        (True, 904896)
    """
    plan, knobs = _planned(method, task, model, knobs, reward, test_data, data, take, preset, settings)
    return dry_run(plan, knobs, out, memory)


def _planned(
    method: str | Method, task: Any, model: Any, knobs: Knobs | None, reward: Any, test_data: Any, data: Any,
    take: Mapping[str, str] | None, preset: str, settings: dict[str, Any], trackers: tuple[str, ...] = (),
) -> tuple[Plan, Knobs | None]:  # fmt: skip
    """The plan of what was asked for, and the knobs that are yet to be set in it."""
    if "tokenizer" in settings:
        raise UserError("tokenizer= is no argument of train; give both: model=(model, tokenizer).")
    chosen = _method(method, take)
    check_names(settings, parts=chosen.parts())
    stored, dataset = data_argument(data)
    if stored and isinstance(task, str) and task == DEFAULT_TASK:
        task = environment_of(stored, dataset)
    task, test_data, objects = task_argument(task, test_data)
    rewards, held = kept_or_held(reward)
    named, given = model_argument(model)
    objects = dataclasses.replace(objects, reward=held, model=given, dataset=dataset)
    if preset:
        found = choose(preset, chosen, task, settings, knobs or {})
        settings, knobs = found.settings, found.knobs
        warnings.warn(Remark(found.told), stacklevel=2)
    full = Settings(**with_system_text(settings))
    return Plan(chosen, task, named, full, rewards, test_data, trackers, stored, objects=objects), knobs


_method = method


@checked(steps=optional(instance("a whole number, or None", int)), **_checks("path", "watcher", "trust"))
def resume(
    path: str | Path,
    watcher: Watcher | None = None,
    trust: bool = False,
    *,
    steps: int | None = None,
    task: object = None,
    reward: object = None,
    model: object = None,
    trackers: Sequence[Any] = (),
    callbacks: Sequence[Any] = (),
) -> Run:
    """Goes on with a run that was stopped or killed, to the same end as if it had not been. A finished one is returned as it is.

    Args:
        steps: How many there shall be in all, of a finished run too; schedules are from there on those of a run of so many.
        trust: Code in the folder that this machine did not write may run, now and later.
        task, reward, model: What the run was given as Python objects that its folder could not keep; it said so when it began.
        trackers, callbacks: As in `train`; no folder keeps objects. Trackers by name are the run's own already.
    """
    listeners = Listeners(watcher, checked_callbacks(callbacks), check_trackers(trackers))
    opened, objects = RunFolder.open(path), objects_again(task, reward, model)
    done = (opened.path / "summary.json").exists() and steps is None
    if objects != PythonObjects():
        objects.check(checked_table(opened)["unkept"], opened.path)
    run = resume_run(path, listeners, trust, objects, steps)
    return run if done else _reported(run)


@checked(**_checks("path", "trust"))
def load(
    path: str | Path,
    trust: bool = False,
    *,
    checkpoint: str = "last",
    task: object = None,
    reward: object = None,
    model: object = None,
) -> Run:
    """A run from its folder, to look at: ``load(path).metrics``, ``.summary``, ``.table``.

    Looking runs nothing. ``.plan`` and ``.policy`` load methods, tasks and rewards of the user's own, if the folder has any.

    Args:
        trust: Such code may run although this machine did not write it, now and later.
        checkpoint: ``"last"``, or ``"best"`` for the weights of the best evaluation where the run kept them.
        task, reward, model: As in `resume`.
    """
    if not isinstance(checkpoint, str) or checkpoint not in ("best", "last"):
        raise UserError(f"checkpoint is {shown(checkpoint)}; it must be 'best' or 'last'.")
    folder, best = RunFolder.open(path), checkpoint == "best"
    if best:
        folder.kept_best()
    return Run(folder, trust=trust, objects=objects_again(task, reward, model), use_best=best)


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
    **_checks("knobs", "take", "out"),
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


def _reported(run: Run) -> Run:
    from upslope.report.page import write_report

    write_report(run)
    return run
