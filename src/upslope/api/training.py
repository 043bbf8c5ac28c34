"""A run: trained, estimated, gone on with, looked at. A finished one gets its report."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from upslope.api import finding
from upslope.api.argument_checks import DEFAULT_TASK, OF_A_RUN, checks
from upslope.errors import Remark, UserError
from upslope.experience.given import data_argument, environment_of
from upslope.fields import shown
from upslope.given import model_argument, objects_again, task_argument
from upslope.methods.control.presets import choose
from upslope.plain_data import Knobs
from upslope.plan import Plan, checked_table
from upslope.rewards import kept_or_held
from upslope.run import Run, Watcher, dry_run
from upslope.run import resume as resume_run
from upslope.run import start as start_run
from upslope.run.callbacks import checked_callbacks
from upslope.run.listeners import Listeners
from upslope.runtime.arguments import checked, instance, optional, text
from upslope.runtime.python_objects import PythonObjects
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.settings import Settings, check_names
from upslope.runtime.system_text import with_system_text
from upslope.runtime.trackers import check_trackers
from upslope.sizes.estimate import Estimate
from upslope.types import Method


@checked(
    **OF_A_RUN,
    **checks("knobs", "out", "take", "watcher"),
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
    **OF_A_RUN,
    memory=text("a size of memory, such as '80GB'"),
    **checks("knobs", "out", "take"),
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
    chosen = finding.method(method, take)
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


@checked(steps=optional(instance("a whole number, or None", int)), **checks("path", "watcher", "trust"))
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


@checked(**checks("path", "trust"))
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


def _reported(run: Run) -> Run:
    from upslope.report.page import write_report

    write_report(run)
    return run
