"""The plan of a run: all that defines it, and how it stands in ``run.toml``."""

from __future__ import annotations

import dataclasses
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from upslope.errors import Remark, UserError
from upslope.plain_data import JsonDict
from upslope.plugins import changed_versions, full_name
from upslope.rewards import plugin_of as reward_plugin
from upslope.rewards.spec import from_anywhere
from upslope.runtime import trust, user_code
from upslope.runtime.data_files import DataFiles, file_digest
from upslope.runtime.method_file import method_from_table, method_table, modern_table, packages_of
from upslope.runtime.python_objects import IN_RUN, MODEL_FOLDER, PythonObjects, located
from upslope.runtime.reward_text import RewardText, reward_texts
from upslope.runtime.run_folder import FORMAT, RunFolder
from upslope.runtime.settings import Domain, Settings
from upslope.tasks import plugin_of as task_plugin
from upslope.tasks import task_domain
from upslope.tasks.env_sources import beside_user
from upslope.tasks.kinds import domain_of, kind_of, mixture_of, with_domain
from upslope.types import Method

KINDS = {
    "task": str, "model": str, "reward": list, "test_data": str, "dataset": str, "dataset_digest": str,
    "trackers": list, "unkept": list, "data": dict, "packages": dict,
    "settings": dict, "method": dict,
}  # fmt: skip
"""What must stand in a ``run.toml``."""


@dataclass(frozen=True)
class Plan:
    """All that defines a run; the same plan gives the same run."""

    method: Method
    task: str
    model: str = "tiny"
    settings: Settings = field(default_factory=Settings)
    reward: tuple[str, ...] = ()
    """The rewards, each as `RewardText` reads it."""
    test_data: str = ""
    trackers: tuple[str, ...] = ()
    dataset: str = ""
    """Stored experience to learn from, in control: as `upslope.experience.dataset.load_dataset` reads it."""
    dataset_digest: str = ""
    """Of what it held when the run began."""
    base: str = field(default="", compare=False)
    """The run's own copy of ``model``, which adapters are added to, if it has one: it is loaded in place of ``model``."""
    objects: PythonObjects = field(default_factory=PythonObjects, repr=False, compare=False)
    """What was given as objects; the texts above then say what they are called."""
    domain: Domain = field(init=False)
    """Whether the task is text or an environment."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reward", reward_texts(self.reward))  # a single text is one reward, not its letters
        object.__setattr__(self, "task", beside_user(self.task))
        if (judged := beside_user(self.settings.test_task)) != self.settings.test_task:
            object.__setattr__(self, "settings", dataclasses.replace(self.settings, test_task=judged))
        if self.settings.judge not in ("", "policy"):
            judge = absolute_model(self.settings.judge)
            object.__setattr__(self, "settings", dataclasses.replace(self.settings, judge=judge))
        object.__setattr__(self, "domain", getattr(self.objects.task, "domain", None) or task_domain(self.task))
        object.__setattr__(self, "model", absolute_model(self.model))

    @property
    def task_name(self) -> str:
        """The task for people: of a file its name, wherever it is."""
        return self._joined(lambda piece, key: Path(piece).name if kind_of(piece) == "data" else piece)

    @cached_property
    def _pieces(self) -> dict[str, str]:
        """The texts that name the task, several for a mixture, each with what the file it may be is known by."""
        if self.objects.task is not None:
            return {}
        pieces = mixture_of(self.task)
        return {"task" if number == 0 else f"task{number + 1}": piece for number, piece in enumerate(pieces)}

    def _joined(self, named: Callable[[str, str], str]) -> str:
        """The task's text with each piece called something else."""
        return "+".join(named(piece, key) for key, piece in self._pieces.items()) or self.task

    @cached_property
    def data_files(self) -> dict[str, DataFiles]:
        """The files that task and test data are read from, by argument; what they held when they were first asked for."""
        found: dict[str, DataFiles] = {}
        paths = {key: piece for key, piece in self._pieces.items() if kind_of(piece) == "data"}
        paths |= {"test_data": self.test_data if self.objects.test_data is None else ""}
        taken = {getattr(each, "kept_name", "") for each in (self.objects.task, self.objects.test_data)}
        for key, path in paths.items():
            if path:
                files = DataFiles.at(path)
                same = any(each.source == files.source for each in found.values())
                found[key] = DataFiles.at(path, f"{key.partition('_')[0]}-") if files.name in taken and not same else files
                taken.add(found[key].name)
        return found

    def table(self) -> JsonDict:
        """As it stands in ``run.toml``."""
        from upslope import __version__

        files = self.data_files
        task = self._joined(lambda piece, key: files[key].name if key in files else full_name(piece, task_plugin(piece)))
        return {
            "upslope": __version__,
            "format": FORMAT,
            "domain": self.domain,
            "task": task,
            "model": self.model,
            "reward": [self._full_reward(text) for text in self.reward],
            "test_data": files["test_data"].name if "test_data" in files else self.test_data,
            "dataset": self.dataset,
            "dataset_digest": self.dataset_digest,
            "trackers": list(self.trackers),
            "unkept": self.objects.unkept(),
            "packages": self._packages(),
            "build": {"python": platform.python_version(), "torch": torch.__version__},
            "data": {name: digest for each in files.values() for name, digest in each.digests.items()},
            "sources": {each.name: str(each.source) for each in files.values() if each.copied},
            "settings": {key: value for key, value in dataclasses.asdict(self.settings).items() if value is not None},
            "method": method_table(self.method),
        }

    def keep(self, folder: Path, table: JsonDict) -> JsonDict:
        """Writes data and objects below the run's folder; the table as it stands in ``run.toml`` then."""
        for each in self.data_files.values():
            each.keep(folder)
        names = self.objects.keep(folder)
        written = {name: Path(located(name, folder)) for name in names.values() if name.startswith(f"{IN_RUN}/")}
        data = {name: file_digest(path) for name, path in written.items() if path.is_file()}
        return table | names | {"data": table["data"] | data}

    def _full_reward(self, text: str) -> str:
        """A reward as ``run.toml`` names it; what is an object of Python's is only called something there."""
        read = RewardText.parse(text)
        return text if self.objects.reward else str(read.named(from_anywhere(full_name(read.name, reward_plugin(text)))))

    def _packages(self) -> dict[str, str]:
        """Versions of the installed packages whose parts, task or reward the run uses. A method stands in the file as a whole."""
        found = (*map(task_plugin, self._pieces.values()), *(() if self.objects.reward else map(reward_plugin, self.reward)))
        used = [plugin for plugin in found if plugin is not None]
        return dict(sorted((packages_of(self.method) | {plugin.package: plugin.version for plugin in used}).items()))

    @classmethod
    def from_folder(cls, folder: RunFolder, trusted: bool = False, objects: PythonObjects | None = None) -> Plan:
        """The plan of an existing run, with the code of the user's own that it names: that is loaded, and so run.

        Data that changed since are refused: the run could not be the same. Of small files it reads its own copy.

        Args:
            trusted: code that this machine did not write may run (`upslope.runtime.trust`).
            objects: what the run was given as objects that its folder could not keep.
        """
        table, code, objects = checked_table(folder), folder.path / "code", objects or PythonObjects()
        objects.check(table["unkept"], folder.path)
        table |= {key: located(table[key], folder.path) for key in ("test_data", "model", "dataset")}
        table["task"] = "+".join(located(piece, folder.path) for piece in mixture_of(table["task"]))
        for name, digest in table["data"].items():
            file = Path(located(name, folder.path))
            if not file.is_file():
                where = f"no file {str(file)!r} (looked for {file.absolute()})"
                raise UserError(f"{where}, which {folder.path} learns from. Go where the run was started, or put it back.")
            if file_digest(file) != digest:
                raise UserError(f"{file} has changed since {folder.path} began; put the old file back to go on.")
        for remark in changed_versions(table["packages"]):
            warnings.warn(Remark(remark), stacklevel=2)
        trust.check(table, code, trusted)
        if ".py:" in table["task"]:
            table["task"] = _located_code(table["task"], code)
        if ".py:" in (judged := str(table["settings"].get("test_task", ""))):
            table["settings"] = table["settings"] | {"test_task": _located_code(judged, code)}
        rewards = [RewardText.parse(text) for text in table["reward"]]
        rewards = [each.named(_located_code(each.name, code)) if each.is_code else each for each in rewards]
        plan = cls(
            method=method_from_table(table["method"], code),
            task=table["task"],
            model=table["model"],
            settings=Settings(**_own_columns(table)),
            reward=tuple(map(str, rewards)),
            test_data=table["test_data"],
            trackers=tuple(table["trackers"]),
            dataset=table["dataset"],
            dataset_digest=table["dataset_digest"],
            base=str(own) if table["settings"].get("lora") and (own := folder.path / MODEL_FOLDER).is_dir() else "",
            objects=objects,
        )
        if plan.domain != table["domain"]:
            said = f"its domain is {table['domain']!r}, and {table['task']!r} is {plan.domain}"
            raise UserError(f"{folder.path / 'run.toml'} is not as a run writes it: {said}. Put the old one back.")
        return plan


def method_of_run(path: str | Path) -> Method:
    """The method of a run, knobs and all, by the path of its ``run.toml``.

    Parts of somebody's own come from the run's ``code`` folder, and run only if `upslope.runtime.trust` knows them.
    """
    folder = RunFolder.open(Path(path).expanduser().parent)
    method, code = checked_table(folder)["method"], folder.path / "code"
    trust.check({"method": method}, code, False)
    return method_from_table(method, code)


def _located_code(reference: str, code: Path) -> str:
    path, attribute, _ = user_code.locate(reference, code)
    return f"{path}:{attribute}"


def checked_table(folder: RunFolder) -> JsonDict:
    """A run's ``run.toml`` with all that a plan needs, parts by today's names; whatever is not as a run writes it is refused."""
    older: JsonDict = {"packages": {}, "unkept": [], "dataset": "", "dataset_digest": ""}
    table = older | folder.table()  # older runs have none
    if isinstance(table.get("reward"), str):  # older runs have one at most
        table["reward"] = list(reward_texts(table["reward"]))
    for key, kind in KINDS.items():
        if not isinstance(table.get(key), kind):
            what = f"{key} = {str(table[key])[:40]!r}" if key in table else f"no {key!r}"
            raise UserError(f"{folder.path / 'run.toml'} has {what}: it is not as a run writes it. Put the old one back.")
    if strange := [text for text in table["reward"] if not isinstance(text, str)]:
        told = f"has the reward {str(strange[0])[:40]!r}"
        raise UserError(f"{folder.path / 'run.toml'} {told}: it is not as a run writes it. Put the old one back.")
    known = {f.name for f in dataclasses.fields(Settings)}
    if unknown := sorted(set(table["settings"]) - known):
        raise UserError(f"{folder.path / 'run.toml'} has settings that this version does not know: {', '.join(unknown)}.")
    try:
        table = with_domain(table)
        # What a user's file has under a name is known only when it is loaded.
        by_name = "task" not in table["unkept"] and ".py:" not in table["task"]
        if by_name and table["domain"] != (own := domain_of(table["task"])):
            raise ValueError(f"its domain is {table['domain']!r}, and {table['task'][:40]!r} is {own}")
    except ValueError as problem:
        raise UserError(f"{folder.path / 'run.toml'} is not as a run writes it: {problem}. Put the old one back.") from None
    table["method"] = modern_table(table["method"])
    return table


def _own_columns(table: JsonDict) -> JsonDict:
    """A run's settings. One from before columns were recognised by name goes on with those that it has read: ours; and one from
    before slices followed from the plan is cut as it was."""
    given = table["settings"]
    literal = {"columns": "prompt=prompt,answer=answer"} if table["data"] and "columns" not in given else {}
    # Before slices followed from the plan they were a share of the device, with a switch for recomputing: such a run stays cut so.
    older = {"slice_tokens": 0} if given.get("device") == "cuda" and "slice_tokens" not in given else {}
    # A run from before there were drafts goes on without.
    return {"recompute": "off", "speculate": "off", **given, **literal, **older}


def absolute_model(model: str) -> str:
    """A model as a plan names it: a folder by its absolute path, so that a run finds it from anywhere."""
    built_in = model.split(":")[0] in ("tiny", "smollm2")
    return str(Path(model).expanduser().absolute()) if not built_in and Path(model).expanduser().is_dir() else model
