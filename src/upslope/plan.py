"""The plan of a run: all that defines it, and how it stands in ``run.toml``."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch

from upslope.errors import Remark, UserError
from upslope.plain_data import JsonDict
from upslope.plugins import changed_versions, full_name
from upslope.rewards import plugin_of as reward_plugin
from upslope.runtime import trust, user_code
from upslope.runtime.method_file import method_from_table, method_table, modern_table, packages_of
from upslope.runtime.python_objects import PythonObjects, located
from upslope.runtime.run_folder import FORMAT, RunFolder
from upslope.runtime.settings import Domain, Settings
from upslope.tasks import plugin_of as task_plugin
from upslope.tasks import task_domain
from upslope.tasks.env_sources import beside_user
from upslope.tasks.kinds import domain_of, with_domain
from upslope.types import Method

KINDS = {
    "task": str, "model": str, "reward": str, "test_data": str, "trackers": list, "unkept": list, "data": dict, "packages": dict,
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
    reward: str = ""
    test_data: str = ""
    trackers: tuple[str, ...] = ()
    objects: PythonObjects = field(default_factory=PythonObjects, repr=False, compare=False)
    """What was given as objects; the texts above then say what they are called."""
    domain: Domain = field(init=False)
    """Whether the task is text or an environment."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", beside_user(self.task))
        object.__setattr__(self, "domain", getattr(self.objects.task, "domain", None) or task_domain(self.task))

    def table(self) -> JsonDict:
        """As it stands in ``run.toml``."""
        from upslope import __version__

        return {
            "upslope": __version__,
            "format": FORMAT,
            "domain": self.domain,
            "task": full_name(self.task, task_plugin(self.task)),
            "model": self.model,
            "reward": full_name(self.reward, reward_plugin(self.reward)),
            "test_data": self.test_data,
            "trackers": list(self.trackers),
            "unkept": self.objects.unkept(),
            "packages": self._packages(),
            "build": {"python": platform.python_version(), "torch": torch.__version__},
            "data": {path: _digest(Path(path)) for path in (self.task, self.test_data) if path.endswith(".jsonl")},
            "settings": {key: value for key, value in dataclasses.asdict(self.settings).items() if value is not None},
            "method": method_table(self.method),
        }

    def _packages(self) -> dict[str, str]:
        """Versions of the installed packages whose parts, task or reward the run uses. A method stands in the file as a whole."""
        used = [plugin for plugin in (task_plugin(self.task), reward_plugin(self.reward)) if plugin is not None]
        return dict(sorted((packages_of(self.method) | {plugin.package: plugin.version for plugin in used}).items()))

    @classmethod
    def from_folder(cls, folder: RunFolder, trusted: bool = False, objects: PythonObjects | None = None) -> Plan:
        """The plan of an existing run, with the code of the user's own that it names: that is loaded, and so run.

        Data that changed since are refused: the run could not be the same.

        Args:
            trusted: code that this machine did not write may run (`upslope.runtime.trust`).
            objects: what the run was given as objects that its folder could not keep.
        """
        table, code, objects = checked_table(folder), folder.path / "code", objects or PythonObjects()
        objects.check(table["unkept"], folder.path)
        table |= {key: located(table[key], folder.path) for key in ("task", "test_data", "model")}
        for path, digest in table["data"].items():
            if not Path(path).is_file():
                where = f"no file {path!r} (looked for {Path(path).absolute()})"
                raise UserError(f"{where}, which {folder.path} learns from. Go where the run was started, or put it back.")
            if _digest(Path(path)) != digest:
                raise UserError(f"{path} has changed since {folder.path} began; put the old file back to go on.")
        for remark in changed_versions(table["packages"]):
            warnings.warn(Remark(remark), stacklevel=2)
        trust.check(table, code, trusted)
        for key in ("task", "reward"):
            if ".py:" in table[key]:
                path, attribute, _ = user_code.locate(table[key], code)
                table[key] = f"{path}:{attribute}"
        plan = cls(
            method=method_from_table(table["method"], code),
            task=table["task"],
            model=table["model"],
            settings=Settings(**table["settings"]),
            reward=table["reward"],
            test_data=table["test_data"],
            trackers=tuple(table["trackers"]),
            objects=objects,
        )
        if plan.domain != table["domain"]:
            said = f"its domain is {table['domain']!r}, and {table['task']!r} is {plan.domain}"
            raise UserError(f"{folder.path / 'run.toml'} is not as a run writes it: {said}. Put the old one back.")
        return plan


def checked_table(folder: RunFolder) -> JsonDict:
    """A run's ``run.toml`` with all that a plan needs, parts by today's names; whatever is not as a run writes it is refused."""
    table: JsonDict = {"packages": {}, "unkept": []} | folder.table()  # older runs have none
    for key, kind in KINDS.items():
        if not isinstance(table.get(key), kind):
            what = f"{key} = {str(table[key])[:40]!r}" if key in table else f"no {key!r}"
            raise UserError(f"{folder.path / 'run.toml'} has {what}: it is not as a run writes it. Put the old one back.")
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


def base_digests(policy: object, settings: Settings) -> dict[str, str]:
    """The files of the model that adapters were added to, by digest: what a checkpoint has learned is worth nothing without it."""
    folder = getattr(policy, "source", None)
    if not settings.lora or folder is None:
        return {}
    weights = sorted(file for suffix in ("safetensors", "bin") for file in folder.glob(f"*.{suffix}"))
    return {str(file): _digest(file) for file in (folder / "config.json", *weights)}


def check_base(folder: RunFolder, policy: object, settings: Settings) -> None:
    """Refuses a run with adapters whose model is not the one it began with."""
    known = folder.table().get("base") or {}
    for file, digest in base_digests(policy, settings).items():
        if known and known.get(file) != digest:
            raise UserError(f"{file} has changed since {folder.path} began, and its adapters belong to the old one. Put that back.")


def _digest(path: Path) -> str:
    """Of a file's bytes, in pieces: it may be larger than memory."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
