"""Tasks by name: what to train on.

>>> from upslope.tasks import load_task
>>> load_task("sort:length=6").max_tokens
8
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upslope.errors import TaskError, did_you_mean
from upslope.plain_data import JsonDict
from upslope.plugins import TASKS, Plugin, missing, named, plugins
from upslope.runtime import user_code
from upslope.runtime.settings import Domain
from upslope.tasks import packages
from upslope.tasks.copying import Copy
from upslope.tasks.embedded import FAMILY as SMALL
from upslope.tasks.embedded import EmbeddedTask
from upslope.tasks.env_sources import EnvSource, InFile, beside_user, environments_in, is_environment
from upslope.tasks.giving import CURES
from upslope.tasks.grounding import Grounding
from upslope.tasks.interval import IntervalGrounding
from upslope.tasks.kinds import DATA_SUFFIXES, Kind, domain_of, is_data_folder, is_known, kind_of, mixture_of
from upslope.tasks.mixed import MixedTask
from upslope.tasks.own import make_own
from upslope.tasks.recommend import Recommend
from upslope.tasks.rps import RockScissorsPaper
from upslope.tasks.rulebook import RulebookTask
from upslope.tasks.table_files import Table, files_in
from upslope.tasks.text import NoReward, Problem, Reward, Scores, Split, TextTask, UndecidedReward, WithReward, split_of
from upslope.tasks.toolcall import ToolCall
from upslope.tasks.worlds.names import WORLDS

if TYPE_CHECKING:
    from upslope.tasks.gym import GymTask

__all__ = [
    "MixedTask", "Problem", "Scores", "Split", "TaskInfo", "TextTask", "WithReward", "domain_of", "list_tasks", "load_task",
    "split_of",
]  # fmt: skip

FAMILY: dict[str, type[EmbeddedTask]] = {
    **SMALL,
    **{task.kind: task for task in (Copy, Grounding, IntervalGrounding, Recommend, RockScissorsPaper, RulebookTask, ToolCall)},
}
"""The tasks that are made on the spot, by name."""

HUB = re.compile(r"(?:hf://|https?://huggingface\.co/)(?:datasets/)?(?P<name>[\w.-]+(?:/[\w.-]+)?)")
"""An address on the Hugging Face hub, and the name of the dataset in it."""


@dataclass(frozen=True)
class TaskInfo:
    """A line of ``upslope tasks``."""

    name: str
    domain: Domain
    description: str
    gives: tuple[str, ...] | None = None
    """What its problems have beside prompt and score (`upslope.tasks.giving`); nothing where that depends on the task."""


def list_tasks(all: bool = False) -> list[TaskInfo]:
    """What `load_task` takes. With ``all`` also every dataset of reasoning-gym, which takes seconds to load."""
    found = {name: task.about for name, task in FAMILY.items()}
    gives = {name: task.all_give() for name, task in FAMILY.items()}
    if all:
        from upslope.tasks.reasoning_gym import all_give, dataset_names

        found |= {f"reasoning-gym:{name}": f"reasoning-gym's {name}." for name in dataset_names()}
        gives |= {f"reasoning-gym:{name}": all_give(name) for name in dataset_names()}
    else:
        found["reasoning-gym:NAME"] = "A dataset of reasoning-gym, about a hundred: 'upslope tasks --all'."
    found |= packages.descriptions(FAMILY)
    found["FILE.jsonl"] = 'Problems of your own, a line each: {"prompt": ..., "answer": ...}. Also CSV, Parquet, ...'
    found["FILE.py:CLASS"] = "A TextTask of your own, a sampler and a scorer; or a gymnasium.Env, or a function that makes one."
    found["TASK+TASK"] = "A mixture of text tasks, of each equally often: reverse:length=3+reverse:length=5+problems.jsonl."
    found["gym:ID"] = "Any environment of gymnasium or a known package, such as gym:CartPole-v1; gym:MODULE:ID imports MODULE."
    found |= {f"gym:{name}": world.about for name, world in WORLDS.items()}
    known = {name: tuple(word for word in CURES if word in given) for name, given in gives.items()}
    return [TaskInfo(name, domain_of(name), about, known.get(name)) for name, about in found.items()]


def load_task(
    spec: str | Table | TextTask | GymTask,
    *,
    reward: Reward | None = None,
    test_data: str | Table | None = None,
    columns: str = "",
    judged: bool = False,
) -> TextTask | GymTask:
    """The task a text stands for, ready to sample from; a task itself is taken as it is.

    Args:
        spec: A name with knobs, as in ``sort``, ``sort:length=6``, ``reasoning-gym:chain_sum:max_terms=3,max_digits=2`` or
            ``gym:CartPole-v1``; the name of a task of an installed package, ``maze`` or ``acme-rl/maze``; or a table of problems:
            the path of a ``.jsonl``, ``.json``, ``.csv``, ``.tsv`` or ``.parquet`` file or of a folder of `datasets`. Several
            such texts with ``+`` between them are a mixture of text tasks.
        reward: ``reward(prompts, responses, answers)``; other text tasks may get one instead of their own; a table without one can
            be sampled from but not scored.
        test_data: A table of test problems, beside a table.
        columns: Of a table, ``"prompt=question,answer=solution"``; what is left out is recognised by name.
        judged: Answers are compared by a judge, so that a table needs neither a reward nor answers.

    Raises:
        TaskError: if there is no such task, knob or file, or its content cannot be used.
    """
    if isinstance(spec, str) and (hub := HUB.match(spec)):
        raise TaskError(f"{spec!r} is on the Hugging Face hub, and nothing is downloaded here. {how_to_fetch(hub['name'])}")
    if isinstance(spec, str) and "+" in spec:
        if len(pieces := mixture_of(spec)) > 1:
            return _load_mixture(spec, pieces, reward, test_data, columns)
        _check_pieces(spec)
    if isinstance(spec, Table) or (isinstance(spec, str) and kind_of(spec) == "data"):
        return _load_data(spec, reward, test_data, columns, judged)
    for flag, given in (("--test-data", test_data), ("--columns", columns)):
        if given:
            name = spec if isinstance(spec, str) else spec.name
            raise TaskError(f"{flag} {given!r} goes with a file of problems; {name!r} makes its own.")
    if not isinstance(spec, str):
        return spec if reward is None else WithReward(spec, reward)  # type: ignore[arg-type]
    spec = beside_user(spec)
    kind = kind_of(spec)
    if kind == "file":
        if task_domain(spec) == "control":
            return _load_environment(InFile(*spec.rsplit(":", 1)), {}, spec, reward)
        task = _from_file(spec)
        return task if reward is None else WithReward(task, reward)
    name, options = parse_spec(spec)
    rest = name.partition(":")[2]
    if kind == "gym" and rest:
        return _load_environment(rest, options, spec, reward)
    task = _load_text(spec, kind, name, options)
    return task if reward is None else WithReward(task, reward)


def _load_mixture(
    spec: str, pieces: tuple[str, ...], reward: Reward | None, test_data: str | Table | None, columns: str
) -> TextTask:
    """Each piece as it is loaded alone. A reward is for the files; without one among them, for all."""
    if test_data is not None:
        raise TaskError(
            f"--test-data {test_data!r} goes with one file of problems, and {spec!r} mixes several tasks. Leave it out."
        )
    kinds = [kind_of(piece) for piece in pieces]
    for piece, kind in zip(pieces, kinds, strict=True):
        if kind == "gym":
            raise TaskError(f"{spec!r} mixes tasks in text, and {piece!r} is an environment. Leave it out.")
        if kind == "file":
            cure = "mix it in Python: up.train(METHOD, upslope.tasks.MixedTask((one, other)))"
            raise TaskError(f"{spec!r}: {piece!r} is a task of your own, which a text cannot mix; {cure}.")
    if "data" in kinds and reward is None:
        raise TaskError(
            f"{spec!r} mixes in {pieces[kinds.index('data')]!r}, which has no reward of its own. Give one: --reward exact."
        )
    if columns and "data" not in kinds:
        raise TaskError(f"--columns {columns!r} goes with a file of problems; {spec!r} has none.")
    parts = []
    for piece, kind in zip(pieces, kinds, strict=True):
        file = kind == "data"
        parts.append(load_task(piece, reward=reward if file or "data" not in kinds else None, columns=columns if file else ""))
    return MixedTask(tuple(parts))  # type: ignore[arg-type]


def _check_pieces(spec: str) -> None:
    """Refuses a mixture of which a piece is not known, by that piece. What is no mixture is left to others."""
    pieces = [piece.strip() for piece in spec.split("+")]
    if is_known(spec) or not any(map(is_known, pieces)):
        return
    piece = next(piece for piece in pieces if not is_known(piece))
    if not piece:
        raise TaskError(f"{spec!r} mixes tasks: nothing stands on one side of a plus. Leave it out, or name a task there.")
    is_file = piece.lower().endswith(DATA_SUFFIXES)
    told = (
        f"no file {piece!r} (looked for {Path(piece).expanduser().absolute()})."
        if is_file
        else _unknown(piece, parse_spec(piece)[0])
    )
    raise TaskError(f"{spec!r} mixes tasks: {told}")


def task_domain(spec: str) -> Domain:
    """The domain of a task, also where its name does not say it: what a user's file has under a name is looked at, and so run."""
    file, _, name = spec.rpartition(":")
    return "control" if kind_of(spec) == "file" and Path(file).is_file() and is_environment(file, name) else domain_of(spec)


def _load_environment(source: str | EnvSource, options: JsonDict, spec: str, reward: Reward | None) -> GymTask:
    if reward is not None:
        raise TaskError(f"{spec!r} pays its own reward; another one can only be given to text tasks.")
    from upslope.tasks.gym import GymTask

    return GymTask(source, **options)


def _from_file(spec: str) -> TextTask:
    """A user's own task, ``file.py:Class``."""
    file, _, name = spec.rpartition(":")
    tasks = {key: value for key, value in vars(user_code.load_file(file)).items() if _is_task_class(value)}
    if name not in tasks:
        known = [*tasks, *environments_in(file)]
        raise TaskError(f"{file!r} has no task {name!r}.{did_you_mean(name, known)} It has: {', '.join(known) or 'none'}.")
    return make_own(tasks[name], file)


def _is_task_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, TextTask) and value is not TextTask


def parse_spec(spec: str) -> tuple[str, JsonDict]:
    """``name:knob=value,knob=value`` as the name and the knobs. Values are read as JSON where they are JSON, else as text."""
    name, colon, last = spec.rpartition(":")
    if not colon or "=" not in last:
        return spec, {}
    options: JsonDict = {}
    for item in re.split(r",(?![^\[]*[\])])", last):  # commas inside of [..] belong to a list, of [..) to a range
        knob, equals, value = (part.strip() for part in item.partition("="))
        if not knob or not equals or not value:
            raise TaskError(f"{item!r} in {spec!r} is not of the form knob=value.")
        if knob in options:
            raise TaskError(f"{knob!r} is given twice in {spec!r}.")
        options[knob] = _value(value)
    return name, options


def plugin_of(spec: str) -> Plugin | None:
    """The entry point of the installed package whose task a text names; nothing if it names one of ours, or none."""
    name = parse_spec(spec)[0]
    return named(TASKS, name) if kind_of(spec) == "embedded" and name not in FAMILY else None


def _load_text(spec: str, kind: Kind, name: str, options: JsonDict) -> TextTask:
    rest = name.partition(":")[2]
    if kind == "reasoning-gym" and rest:
        from upslope.tasks.reasoning_gym import ReasoningGymTask

        return ReasoningGymTask(rest, options)
    if name in FAMILY:
        knobs = FAMILY[name].knobs()
        for knob in options:
            if knob not in knobs:
                raise TaskError(f"{name} has no knob {knob!r}.{did_you_mean(knob, knobs)} Its knobs: {', '.join(knobs)}.")
        return FAMILY[name](**options)
    if plugin := named(TASKS, name):
        return packages.make(plugin, options)
    raise TaskError(_unknown(spec, name))


def how_to_fetch(name: str) -> str:
    """The commands that bring a dataset of the hub onto this machine, and what to give then."""
    folder = name.rpartition("/")[2]
    code = f"from datasets import load_dataset; load_dataset({name!r}).save_to_disk({folder!r})"
    return (
        f"Fetch it: hf download {name} --repo-type dataset --local-dir {folder}, then give one of its files, "
        f"--task {folder}/FILE.parquet; "
        f'or python -c "{code}", then --task ./{folder}.'
    )


def _load_data(data: str | Table, reward: Reward | None, test_data: str | Table | None, columns: str, judged: bool) -> TextTask:
    from upslope.tasks.data_task import DataTask

    if reward is None and judged:
        task = DataTask(data, NoReward(), test_data, columns=columns)
        return task.rewarded(UndecidedReward()) if "answers" in task.gives() else task
    return DataTask(data, UndecidedReward() if reward is None else reward, test_data, columns=columns)


def _unknown(spec: str, name: str) -> str:
    if Path(spec).is_file():
        return f"{spec!r} is no kind of file that problems are read from: {', '.join(DATA_SUFFIXES)}. Name it by what is in it."
    if Path(spec).is_dir():
        if is_data_folder(f"./{spec}"):
            return f"no task named {spec!r}. The folder with a dataset is given as a path: ./{spec}."
        files = ", ".join(files_in(Path(spec))) or "none"
        return f"{spec!r} is a folder, and not one that save_to_disk of datasets wrote. Give one of its files of problems: {files}."
    if name.partition(":")[0] in ("gym", "reasoning-gym"):
        return f"{spec!r} lacks the name behind the colon, as in gym:CartPole-v1 or reasoning-gym:chain_sum."
    if re.fullmatch(r"[\w/]+-v\d+", name):
        return f"no task named {name!r}. An environment of gymnasium is written gym:{name}."
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        package = missing(name.partition("/")[0], TASKS, "as the name of a task it belongs to a package")
        return f"no task named {name!r}. If it is a dataset on the Hugging Face hub: {how_to_fetch(name)} Otherwise: {package}"
    infos = list_tasks()
    known = [*FAMILY, *(plugin.name for plugin in plugins(TASKS)), "reasoning-gym:", "gym:"]
    return f"no task named {name!r}.{did_you_mean(name, known)} 'upslope tasks' lists all {len(infos)}."


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
