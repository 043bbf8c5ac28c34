"""Kinds of tasks and their domains: the one place where the text that names a task says whether it is text or an environment.

No torch here, and nothing that a task names is loaded. Everybody else reads the domain of the plan, of ``run.toml`` or of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast, get_args

from upslope.plain_data import JsonDict
from upslope.runtime.python_objects import IN_RUN
from upslope.runtime.settings import Domain

DOMAINS: tuple[Domain, ...] = get_args(Domain)
Kind = Literal["data", "file", "gym", "reasoning-gym", "embedded", "mixed"]
ENVIRONMENTS: frozenset[Kind] = frozenset({"gym"})
"""Kinds whose tasks are acted in; those of all others are answered in text."""

DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz", ".parquet")
"""How files of problems end."""
DATASET_FILES = ("dataset_dict.json", "state.json")
"""What the library `datasets` writes into a folder (``save_to_disk``) of several splits, or of one."""


def is_data_folder(spec: str) -> bool:
    """Whether a text is the path of a folder that `datasets` wrote. It must look like a path: a bare name is that of a task."""
    looks = "/" in spec or spec.startswith((".", "~"))
    try:
        return looks and any((Path(spec).expanduser() / name).is_file() for name in DATASET_FILES)
    except (OSError, ValueError, RuntimeError):  # a null character, a name too long, nobody's home
        return False


def kind_of(spec: str) -> Kind:
    """How a task's name is to be read; names that stand for nothing count as embedded, where they are refused."""
    if len(mixture_of(spec)) > 1:
        return "mixed"
    if spec.lower().endswith(DATA_SUFFIXES) or is_data_folder(spec):
        return "data"
    if ".py:" in spec:
        return "file"
    family, colon, _ = spec.partition(":")
    return cast(Kind, family) if colon and family in ("gym", "reasoning-gym") else "embedded"


def mixture_of(spec: str) -> tuple[str, ...]:
    """The tasks that ``A+B`` mixes; a text that names one task is that one. A plus in a path or in an option mixes nothing.

    It is cut only where every piece is a task or a file that there is.
    """
    if "+" not in spec or is_known(spec):
        return (spec,)
    return _pieces(spec) or (spec,)


def _pieces(text: str) -> tuple[str, ...]:
    text = text.strip()
    if is_known(text):
        return (text,)
    for cut in (place for place, letter in enumerate(text) if letter == "+"):
        if is_known(first := text[:cut].strip()) and (rest := _pieces(text[cut + 1 :])):
            return (first, *rest)
    return ()


def is_known(spec: str) -> bool:
    """Whether a text names one task that there is, as far as can be told without loading it."""
    if spec.startswith(f"{IN_RUN}/"):  # a copy that a run keeps: {run}/data/NAME
        return spec.count("/") == 2 and (spec.lower().endswith(DATA_SUFFIXES) or "+" not in spec)
    try:
        if is_data_folder(spec):
            return True
        if spec.lower().endswith(DATA_SUFFIXES):
            return Path(spec).expanduser().is_file()
        if ".py:" in spec:
            return Path(spec.rpartition(":")[0]).is_file()
    except (OSError, ValueError, RuntimeError):
        return False
    name, colon, _ = spec.partition(":")
    if "+" in _outside_brackets(spec):
        return False
    return name in task_names() or bool(colon and name in ("gym", "reasoning-gym"))


def _outside_brackets(text: str) -> str:
    """What stands in no list: ``operators=["+","-"]`` mixes nothing. An open bracket that is never closed counts as a plus."""
    depth, outside = 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        outside += letter if depth == 0 else ""
    return outside if depth == 0 else "+"


def task_names() -> frozenset[str]:
    """Names of tasks that are made on the spot: ours, and those of installed packages."""
    from upslope.plugins import TASKS, plugins
    from upslope.tasks import FAMILY

    own = [name for plugin in plugins(TASKS) for name in (plugin.name, f"{plugin.package}/{plugin.name}")]
    return frozenset([*FAMILY, *own])


def domain_of(spec: str) -> Domain:
    """The domain of the task that a text names."""
    return "control" if kind_of(spec) in ENVIRONMENTS else "text"


def with_domain(table: Mapping[str, object]) -> JsonDict:
    """What stands in a ``run.toml``, with its domain: files written before there was one are given their task's.

    Raises:
        ValueError: if it says a domain that there is not.
    """
    task = table.get("task")
    said = table.get("domain", domain_of(task if isinstance(task, str) else ""))
    if said not in DOMAINS:
        raise ValueError(f"its domain is {str(said)[:40]!r}, which is not {' or '.join(DOMAINS)}")
    return {**table, "domain": said}
