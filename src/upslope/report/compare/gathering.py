"""From folders of runs to what can be compared: read, grouped by method and knobs, with what stands in the way of a ranking."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.plan import checked_table
from upslope.report.compare.cells import bed_name, flat, is_comparison, read_labels
from upslope.report.compare.sampling import counts
from upslope.runtime.data_files import shown_name
from upslope.runtime.run_folder import RunFolder
from upslope.runtime.settings import Settings
from upslope.types.part_index import class_name

BUDGET = ("steps", "tasks_per_step", "samples_per_task", "train_problems", "envs", "horizon", "max_tokens", "warm_start")
"""What a run may spend. Runs that differ in one of these are not ranked."""
BOOKKEEPING = (
    "seed", "threads", "checkpoint_every", "keep_checkpoints", "samples_logged", "record", "watch_kl", "eval_every", "env_workers",
    "device", "engine", "recompute", "speculate",
)  # fmt: skip
"""Settings that do not make a method another one."""
TEXTS = ("name", "parent", "family", "differs", "formula", "use_when", "notes", "paper", "on")


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    path: Path
    method: str
    task: str
    seed: int
    score_name: str
    before: float
    after: float
    evaluations: list[JsonDict]
    steps: list[JsonDict]
    table: JsonDict = dataclasses.field(repr=False)
    """Its ``run.toml``."""
    sampled: JsonDict | None = None
    """For pass@k."""

    @property
    def settings(self) -> JsonDict:
        return self.table["settings"]

    @property
    def control(self) -> bool:
        return self.score_name == "mean return"


@dataclass(frozen=True)
class Contender:
    """A method with its knobs, and all its runs."""

    label: str
    runs: tuple[Trained, ...]

    def on(self, task: str) -> list[Trained]:
        """Its runs on a task, by seed."""
        return sorted((run for run in self.runs if run.task == task), key=lambda run: run.seed)


@dataclass(frozen=True)
class Field:
    """Who stands against whom, on what."""

    contenders: list[Contender]
    tasks: list[str]
    """Those that every contender has been trained on."""
    notes: list[str]
    obstacles: list[str]
    """Why they are not ranked; empty where they may be."""

    def runs(self, task: str) -> list[Trained]:
        return [run for each in self.contenders for run in each.on(task)]

    @property
    def paired(self) -> bool:
        """Whether on every task all contenders have the same seeds."""
        return all(len({tuple(run.seed for run in each.on(task)) for each in self.contenders}) == 1 for task in self.tasks)


# -- reading ---------------------------------------------------------------------------------------------------------------


def expand(arguments: Iterable[str | Path]) -> list[tuple[Path, str | None]]:
    """Folders of runs; that of a comparison stands for its cells, which bring their labels."""
    found: dict[Path, str | None] = {}
    for argument in arguments:
        path = Path(argument)
        if is_comparison(path):
            cells = {path / name: label for name, label in read_labels(path).items() if (path / name / "run.toml").is_file()}
            if not cells:
                raise UserError(f"{path} is a comparison of which no run has begun yet.")
            found |= cells
        elif (path / "run.toml").is_file():
            found[path] = None
        else:
            raise UserError(f"{str(path)!r} is neither the folder of a run (it has no run.toml) nor of a comparison.")
    return list(found.items())


def read_run(path: Path) -> Trained | str:
    """A finished run, or why it cannot be compared."""
    folder = RunFolder.open(path)
    try:
        table = checked_table(folder)
        summary = json.loads((path / "summary.json").read_bytes())
        score_name, method, seed = str(summary["score"]), str(table["method"]["name"]), int(table["settings"]["seed"])
    except FileNotFoundError:
        return f"{path} is not finished and is left out; 'upslope resume {path}' goes on with it."
    except UserError as problem:
        return f"{path} is left out: {problem}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{path} cannot be read and is left out; 'upslope check {path}' says more."
    records = folder.read("metrics.jsonl")
    before, after = _finite(summary.get("score_before")), _finite(summary.get("score_after"))
    if before is None or after is None:
        return f"{path} ended with a score that is not a number and is left out; that speaks against it."
    return Trained(
        path=path,
        method=method,
        task=bed_name(shown_name(str(table["task"])).partition("@")[0], str(table["dataset"])),
        seed=seed,
        score_name=score_name,
        before=before,
        after=after,
        evaluations=[each for each in records if each.get("kind") == "evaluation" and _finite(each.get("score")) is not None],
        steps=[each for each in records if each.get("kind") == "step"],
        table=table,
        sampled=counts(path),
    )


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


# -- grouping --------------------------------------------------------------------------------------------------------------


def gather(paths: Sequence[tuple[Path, str | None]]) -> Field:
    """Reads the runs and groups the seeds of the same method with the same knobs."""
    notes: list[str] = []
    runs: list[tuple[Trained, str | None]] = []
    for path, label in paths:
        found = read_run(path)
        if isinstance(found, str):
            notes.append(found)
        else:
            runs.append((found, label))
    if not runs:
        raise UserError(" ".join(["there is no finished run to compare.", *notes[:3]]))
    labels = _labels([run for run, _ in runs])
    grouped: dict[str, list[Trained]] = {}
    for (run, given), made in zip(runs, labels, strict=True):
        here = grouped.setdefault(given or made, [])
        if any(other.seed == run.seed and other.task == run.task for other in here):
            notes.append(f"{run.path} repeats {given or made} with seed {run.seed} and counts once: a copy is no further evidence.")
            continue
        here.append(run)
    contenders = [Contender(label, tuple(some)) for label, some in grouped.items()]
    tasks, obstacles = _common_tasks(contenders, notes)
    obstacles += _differences(contenders, tasks)
    field = Field(contenders, tasks or sorted({run.task for run, _ in runs}), notes, obstacles)
    _remark(field, notes)
    return field


def _labels(runs: Sequence[Trained]) -> list[str]:
    """The method of each run, with the knobs and settings in which runs of the same method on the same task differ."""
    alike: dict[tuple[str, str], list[JsonDict]] = {}
    for run in runs:
        alike.setdefault((run.method, run.task), []).append(_variant(run))
    differing = {
        key: sorted({path for one in some for path in one if any(one.get(path) != other.get(path) for other in some)})
        for key, some in alike.items()
    }
    made = []
    for run in runs:
        mine = _variant(run)
        told = [f"{_knob_name(path)}={_knob_value(path, mine.get(path))}" for path in differing[run.method, run.task]]
        made.append(" ".join([run.method, *dict.fromkeys(told)]))
    return made


def _variant(run: Trained) -> JsonDict:
    """All that makes a run's method what it is, flat."""
    method = {key: value for key, value in run.table["method"].items() if key not in TEXTS}
    # A run of before a setting existed is as if it had its default.
    known = {f.name: f.default for f in dataclasses.fields(Settings)}
    settings = {key: value for key, value in {**known, **run.settings}.items() if key not in BOOKKEEPING}
    return flat({**method, **settings, "model": run.table["model"], "reward function": ", ".join(run.table["reward"])})


def _knob_name(path: str) -> str:
    return path.replace(".0.", ".").removesuffix(".part")


def _knob_value(path: str, value: object) -> str:
    if value is None:
        return "none"
    if path.rpartition(".")[2] == "part":
        return class_name(str(value))
    return str(value).rpartition(":")[2].partition("@")[0] if isinstance(value, str) else str(value)


# -- may they be ranked? ---------------------------------------------------------------------------------------------------


def _common_tasks(contenders: Sequence[Contender], notes: list[str]) -> tuple[list[str], list[str]]:
    each = {one.label: list(dict.fromkeys(run.task for run in one.runs)) for one in contenders}
    every = list(dict.fromkeys(task for tasks in each.values() for task in tasks))
    common = [task for task in every if all(task in tasks for tasks in each.values())]
    if not common:
        told = "; ".join(f"{label}: {', '.join(tasks)}" for label, tasks in each.items())
        return [], [f"they were trained on different tasks ({told})"]
    if len(common) < len(every):
        left = ", ".join(task for task in every if task not in common)
        notes.append(f"Only {', '.join(common)} is compared: not every method has been trained on {left}.")
    return common, []


def _differences(contenders: Sequence[Contender], tasks: Sequence[str]) -> list[str]:
    """Where the runs on a task differ in what must be the same, in words."""
    found = []
    for task in tasks:
        runs = [(each.label, run) for each in contenders for run in each.on(task)]
        for kind, read in (("budget", _budget), ("evaluation set", _evaluation), ("task", _terms)):
            for key in read(runs[0][1]):
                values: dict[str, list[str]] = {}
                for label, run in runs:
                    values.setdefault(_said(read(run)[key]), []).append(label)
                if len(values) > 1:
                    told = "; ".join(f"{value} for {', '.join(dict.fromkeys(labels))}" for value, labels in values.items())
                    where = f" on {task}" if len(tasks) > 1 else ""
                    found.append(f"they differ in {kind}{where}: {key.replace('_', ' ')} is {told}")
    return found


def _said(value: object) -> str:
    return "none" if value in (None, "") else str(value)


def _budget(run: Trained) -> JsonDict:
    kind = ("max_tokens", "warm_start") if run.control else ("envs", "horizon")
    found = {"model": "" if run.control else run.table["model"]}
    found |= {key: run.settings.get(key) for key in BUDGET if key not in kind}
    whole = bool(run.table["method"].get("rollout"))  # in control: whole episodes, or so many steps
    idle = () if not run.control else ("envs", "horizon") if whole else ("tasks_per_step", "samples_per_task")
    return found | dict.fromkeys(idle)


def _evaluation(run: Trained) -> JsonDict:
    last = run.evaluations[-1] if run.evaluations else {}
    return {
        "problems": last.get("problems", last.get("episodes")),
        "test data": shown_name(run.table["test_data"]),
        "score": run.score_name,
    }


def _terms(run: Trained) -> JsonDict:
    data: Mapping[str, object] = run.table.get("data") or {}
    return {
        "reward function": ", ".join(run.table["reward"]),
        "data": " ".join(f"{shown_name(name)} {digest}" for name, digest in sorted(data.items())),
        "dataset": str(run.table["dataset_digest"])[:12],
    }


def _remark(found: Field, notes: list[str]) -> None:
    """What a reader should know before believing a table."""
    if len(found.contenders) > 1 and not found.obstacles and not found.paired:
        seeds = {each.label: len(each.on(task)) for task in found.tasks for each in found.contenders}
        if len(set(seeds.values())) > 1:
            told = ", ".join(f"{label} {count}" for label, count in seeds.items())
            notes.append(f"The numbers of runs differ ({told}). Where runs failed, what is left may flatter the method.")
        else:
            notes.append("The seeds differ, so runs are not paired.")
    for task in found.tasks if found.paired else []:
        starts: dict[int, set[float]] = {}
        for run in found.runs(task):
            starts.setdefault(run.seed, set()).add(run.before)
        if any(len(scores) > 1 for scores in starts.values()):
            notes.append(
                f"On {task} runs of the same seed did not start from the same score: something besides the method differs."
            )
    builds = {(*run.table.get("build", {}).values(), run.table.get("upslope")) for task in found.tasks for run in found.runs(task)}
    if len(builds) > 1:
        notes.append("The runs were made with different versions of upslope, torch or Python.")
    _remark_on_samples(found, notes)


def _remark_on_samples(found: Field, notes: list[str]) -> None:
    for task in found.tasks:
        spent = {}
        for each in found.contenders:
            totals = [sum(float(step.get("samples") or 0) for step in run.steps) for run in each.on(task)]
            spent[each.label] = sum(totals) / max(len(totals), 1)
        least, most = min(spent, key=spent.__getitem__), max(spent, key=spent.__getitem__)
        if spent[least] > 0 and spent[most] > 1.05 * spent[least] and not found.obstacles:
            notes.append(
                f"On {task} {most} sampled {spent[most] / spent[least]:.2f} times as much as {least} in the same number of steps: "
                "the curves against samples are the fair ones."
            )
