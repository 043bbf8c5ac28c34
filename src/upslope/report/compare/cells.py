"""What is to be run: every method with every choice of knobs, on every task, with every seed; checked before the first of them."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import tomli_w

from upslope.errors import UserError, did_you_mean
from upslope.experience.dataset import load_dataset
from upslope.methods import composed_of
from upslope.plain_data import JsonDict, Knobs
from upslope.plan import absolute_model, checked_table
from upslope.plugins import full_name
from upslope.policies.adapter_files import holds_model
from upslope.policies.trained import is_run
from upslope.report.compare.variants import Grid, path_of, read_grid, shown_value, variants, varied_settings
from upslope.runtime.data_files import DataFiles
from upslope.runtime.files import write_text
from upslope.runtime.method_file import method_table
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.settings import Settings, check_domain, check_names
from upslope.runtime.toml_files import parse_toml
from upslope.setting_up import set_up
from upslope.tasks import domain_of, plugin_of
from upslope.tasks.kinds import kind_of, mixture_of
from upslope.types import Method
from upslope.types.part_text import as_text

FILE = "compare.toml"
CURVE_POINTS = 10
"""Evaluations along a run unless ``--eval-every`` says otherwise."""

FindMethod = Callable[[str, Mapping[str, str] | None], Method]


@dataclass(frozen=True)
class Question:
    """What is compared with what. All of it is the same for every method but what ``methods`` and ``grid`` name."""

    methods: tuple[str, ...]
    tasks: tuple[str, ...] = ("reverse",)
    seeds: int = 5
    model: str = "tiny"
    knobs: Knobs = field(default_factory=dict)
    """By path, for every method; ``method:path`` is for that one only."""
    grid: Grid = field(default_factory=dict)
    """By path as in ``knobs``, or by setting, the values to try; each makes a contender of its own."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """As for a run. ``seed`` is the first of the seeds."""
    reward: tuple[str, ...] = ()
    test_data: str = ""
    take: Mapping[str, str] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    """Datasets to learn from, in control; each with each task is a bed of its own."""

    def __post_init__(self) -> None:
        if not self.methods or not self.tasks:
            raise UserError("a comparison needs a method and a task, as in 'upslope compare grpo gspo --task reverse'.")
        for kind, given in (("method", self.methods), ("--task", self.tasks), ("--data", self.data)):
            for name in given:
                if given.count(name) > 1:
                    raise UserError(f"the {kind} {name!r} is given twice; another copy of it would only repeat its runs.")
        if not isinstance(self.seeds, int) or self.seeds < 1:
            raise UserError(f"--seeds is {self.seeds!r}; it must be a whole number, at least 1. Five tell something, ten more.")
        check_names(self.settings)
        Settings(**self.settings)
        object.__setattr__(self, "grid", read_grid(self.grid))
        for path in (*self.knobs, *self.grid):
            owner = path.rpartition(":")[0]
            if owner and owner not in self.methods:
                raise UserError(
                    f"--set or --grid {path!r} is for {owner!r}, which is not compared.{did_you_mean(owner, self.methods)}"
                )
        for path in self.grid:
            if path in self.knobs:
                raise UserError(f"{path!r} is in --set and in --grid; leave one out.")
            if path_of(path) in self.settings:
                name = path_of(path)
                raise UserError(
                    f"--{name.replace('_', '-')} {self.settings[name]} is for all runs, and --grid varies it too; leave one out."
                )

    def cells(self) -> list[Cell]:
        """Every run; seed by seed, so that an early stop leaves a comparison with fewer seeds rather than with fewer methods."""
        first = int(self.settings.get("seed", 0))
        settings = {key: value for key, value in self.settings.items() if key != "seed"}
        made = []
        for seed in range(first, first + self.seeds):
            for task, data in itertools.product(self.tasks, self.data or ("",)):
                for method in self.methods:
                    for each in variants(method, _plain_name(method), self.knobs, self.grid):
                        made.append(Cell(each.label, method, task, seed, each.knobs, {**settings, **each.settings}, self, data))
        return made

    @property
    def beds(self) -> list[str]:
        """What each method is tried on, in words."""
        return [bed_name(task, data) for task, data in itertools.product(self.tasks, self.data or ("",))]

    def command(self) -> str:
        """As one would type it."""
        words = ["upslope", "compare", *self.methods]
        words += [word for task in self.tasks for word in ("--task", task)]
        words += [word for data in self.data for word in ("--data", data)]
        words += ["--seeds", str(self.seeds), *(["--model", self.model] if self.model != "tiny" else [])]
        words += [word for path, value in self.knobs.items() for word in ("--set", f"{path}={as_text(value)}")]
        words += [word for path, values in self.grid.items() for word in ("--grid", f"{path}={','.join(map(shown_value, values))}")]
        words += [word for slot, name in self.take.items() for word in ("--take", f"{slot}={name}")]
        words += [word for text in self.reward for word in ("--reward", text)]
        words += ["--test-data", self.test_data] if self.test_data else []
        return " ".join(map(quote, words + setting_flags(self.settings)))

    def default_folder(self) -> Path:
        names = "-".join(_slug(_plain_name(name)) for name in self.methods)
        return Path("runs") / f"compare-{names}-{'-'.join(_slug(bed) for bed in self.beds)}"[:120]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    method: str
    task: str
    seed: int
    knobs: Knobs
    settings: Mapping[str, Any]
    question: Question = field(repr=False)
    data: str = ""

    @property
    def bed(self) -> str:
        """What it is tried on, in words: the task, and the dataset if there is one."""
        return bed_name(self.task, self.data)

    @property
    def folder(self) -> str:
        """The name of its folder in that of the comparison."""
        return _slug(f"{self.label}-{self.bed}-{self.seed}".replace("=", "").replace(" ", "-"))

    def command(self, out: Path) -> list[str]:
        """The words behind ``upslope`` that train it."""
        asked = self.question
        words = ["train", self.method, "--task", self.task, "--model", asked.model, "--out", str(out), "--quiet"]
        words += [word for path, value in self.knobs.items() for word in ("--set", f"{path}={as_text(value)}")]
        words += [word for slot, name in asked.take.items() for word in ("--take", f"{slot}={name}")]
        words += [word for text in asked.reward for word in ("--reward", text)]
        words += ["--test-data", asked.test_data] if asked.test_data else []
        words += ["--data", self.data] if self.data else []
        return words + setting_flags({**self.settings, "seed": self.seed})

    def shown(self, out: Path) -> str:
        """The command as one would type it."""
        return " ".join(["upslope", *map(quote, self.command(out))])


@dataclass(frozen=True)
class Checked:
    """What checking found out of a question: its cells with the settings that were open, and how they will be seen."""

    cells: list[Cell]
    steps: dict[tuple[str, str], int]
    """Of a run of each label on each task."""
    methods: dict[tuple[str, str], JsonDict]
    """The table of each label's method on each task, as its ``run.toml`` will have it."""
    score: dict[str, str]
    """What each task's score is called."""


def setting_flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of the command line."""
    words = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif value is not None:
            words += [flag, str(value)]
    return words


def check(question: Question, find: FindMethod) -> Checked:
    """Refuses what cannot run, method by method and task by task, before anything runs.

    A model that takes long to load stands aside for the tiny one: tasks, methods, knobs and settings are what is checked.
    """
    small = question.model if question.model.split(":")[0] == "tiny" else "tiny"
    if small != question.model:
        _check_model(question.model)
    steps: dict[tuple[str, str], int] = {}
    methods: dict[tuple[str, str], JsonDict] = {}
    score: dict[str, str] = {}
    cells = question.cells()
    first = cells[0].seed
    for cell in (each for each in cells if each.seed == first):
        check_domain(Settings(**cell.settings), domain_of(cell.task), cell.task, question.model)
        given = Settings(**{**cell.settings, "engine": "torch"})
        components = set_up(
            find(cell.method, question.take), cell.task, small, given, question.reward, question.test_data, cell.knobs,
            dataset=load_dataset(cell.data) if cell.data else None,
        )  # fmt: skip
        components.check_given(given)
        steps[cell.label, cell.bed] = int(components.settings.steps or 0)
        score[cell.bed] = components.score_name
        methods[cell.label, cell.bed] = method_table(components.method)
    folders = [cell.folder for cell in cells]
    if twice := sorted({name for name in folders if folders.count(name) > 1}):
        raise UserError(f"two runs would share the folder {twice[0]!r}: methods, knobs or tasks differ too little in name.")
    made = []
    for cell in cells:
        length = steps[cell.label, cell.bed]
        every = {} if "eval_every" in cell.settings else {"eval_every": max(1, length // CURVE_POINTS)}
        made.append(dataclasses.replace(cell, settings={"keep_checkpoints": 1, **cell.settings, "steps": length, **every}))
    return Checked(made, steps, methods, score)


def _check_model(name: str) -> None:
    folder = Path(name).expanduser()
    if name != "smollm2" and not is_run(name) and not holds_model(folder):
        raise UserError(f"no model {name!r}: neither 'tiny' nor 'smollm2' nor a folder with a config.json.")


# -- the folder of a comparison --------------------------------------------------------------------------------------------


def is_comparison(path: Path) -> bool:
    return (path / FILE).is_file()


def read_labels(path: Path) -> dict[str, str]:
    """The label of each cell of a comparison's folder, in the order in which they were asked for."""
    return {cell["folder"]: cell["label"] for cell in _read_comparison(path)["cells"]}


def read_command(path: Path) -> str:
    """What made the comparison of a folder; empty where several commands did."""
    return str(_read_comparison(path).get("command", "")) if is_comparison(path) else ""


def _read_comparison(path: Path) -> JsonDict:
    """``compare.toml``, if it is as a comparison writes it."""
    try:
        table = parse_toml((path / FILE).read_bytes().decode("utf-8"))
        if all(isinstance(cell["folder"], str) and isinstance(cell["label"], str) for cell in table["cells"]):
            return table
        why = "it is not as a comparison writes it"
    except (OSError, ValueError, KeyError, TypeError) as problem:
        why = str(problem) or type(problem).__name__
    raise UserError(f"{path / FILE} cannot be read: {why}. Put the old one back, or choose another folder.")


def write_question(path: Path, question: Question, cells: Sequence[Cell], told: str = "") -> None:
    """``compare.toml``. A comparison may grow by methods, tasks, grid and seeds; what all runs share must stay as it was.

    Args:
        told: flags that change what is said of the runs, and none of them.
    """
    from upslope import __version__

    shared = {
        "model": question.model,
        "reward": ", ".join(question.reward),
        "test_data": question.test_data,
        "settings": {key: value for key, value in question.settings.items() if key != "seed" and value is not None},
    }
    known: JsonDict = {}
    if is_comparison(path):
        old = _read_comparison(path)
        before = old.get("shared", {})
        if any((path / cell["folder"]).exists() for cell in old["cells"]):
            _refuse_differences(path, before, shared)
        # A question that was asked and came to no run is forgotten with the next one that differs.
        known = {cell["folder"]: cell for cell in old["cells"]} if flat(before) == flat(shared) else {}
    for cell in cells:
        known[cell.folder] = {
            "folder": cell.folder, "label": cell.label, "method": cell.method, "task": cell.task, "seed": cell.seed,
            **({"data": cell.data} if cell.data else {}),
            "knobs": {key: value if isinstance(value, (bool, int, float)) else as_text(value) for key, value in cell.knobs.items()},
            "settings": {key: cell.settings[key] for key in varied_settings(question.grid) if cell.settings.get(key) is not None},
        }  # fmt: skip
    table: JsonDict = {"upslope": __version__, "shared": shared, "cells": list(known.values())}
    if len(known) == len(cells):  # else one command alone would not make all of it
        table["command"] = f"{question.command()} {told}".strip()
    write_text(path / FILE, tomli_w.dumps(table))


def _refuse_differences(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    before, now = flat(old), flat(new)
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            was, wanted = (repr(side[key]) if key in side else "not given" for side in (before, now))
            raise UserError(
                f"{path} holds a comparison with {key.removeprefix('settings.')} {was}, and now it is {wanted}: its runs could not "
                "be compared with new ones. Ask as before to go on with it, or choose another --out."
            )


def check_agrees(cell: Cell, path: Path, checked: Checked) -> None:
    """Refuses to take an earlier run for this cell if it was made with another method, task or setting."""
    table = checked_table(RunFolder.open(path))
    wanted = {"model": absolute_model(cell.question.model), "settings": {**cell.settings, "seed": cell.seed}}
    wanted |= {"dataset": cell.data} if cell.data else {}
    wanted |= {"method": _without_texts(checked.methods[cell.label, cell.bed])}
    if kind_of(cell.task) == "data":
        files = DataFiles.at(cell.task)
        as_given = cell.task in table["data"]  # by an absolute path, or in a run from before they had copies of their data
        digests = {cell.task: files.digests.get(files.name)} if as_given else files.digests
        wanted |= {"task": cell.task if as_given else files.name, "data": digests}
    elif ".py:" not in cell.task:
        pieces = mixture_of(cell.task)
        names = [DataFiles.at(each).name if kind_of(each) == "data" else full_name(each, plugin_of(each)) for each in pieces]
        wanted["task"] = "+".join(names)
    was, now = flat({**table, "method": _without_texts(table["method"])}), flat(wanted)
    for key, value in now.items():
        if value is not None and was.get(key) != value and str(was.get(key)) != str(value):
            raise UserError(
                f"{path} was trained with {key} {was.get(key)!r}, and now it is {value!r}. Choose another --out, or move that "
                "run away."
            )


def _without_texts(method: Mapping[str, Any]) -> JsonDict:
    return {key: value for key, value in method.items() if key not in ("differs", "formula", "use_when", "notes", "paper")}


def flat(table: Any, path: str = "") -> JsonDict:
    """Nested tables and lists as one, by dotted path."""
    if isinstance(table, Mapping):
        items: list[tuple[str, Any]] = [(str(key), value) for key, value in table.items()]
    elif isinstance(table, (list, tuple)):
        items = [(str(position), value) for position, value in enumerate(table)]
    else:
        return {path: table}
    found: JsonDict = {}
    for key, value in items:
        found |= flat(value, f"{path}.{key}" if path else key)
    return found


# -- names -----------------------------------------------------------------------------------------------------------------


def _plain_name(method: str) -> str:
    """``my_method.py:better`` is called ``better``, ``my_method.py`` ``my_method``; so in a composition."""
    files = [word.partition(".py") for word in composed_of(method)]
    return "+".join(name.removeprefix(":") or Path(path).name for path, _, name in files)


def bed_name(task: str, data: str) -> str:
    """A task, and the dataset that is learned from there, in words."""
    return f"{task} from {Path(data).name}" if data else task


def _slug(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text.replace("=", "")).strip("-")
