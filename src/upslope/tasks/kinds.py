"""Kinds of tasks and their domains: the one place where the text that names a task says whether it is text or an environment.

No torch here, and nothing that a task names is loaded. Everybody else reads the domain of the plan, of ``run.toml`` or of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast, get_args

from upslope.plain_data import JsonDict
from upslope.runtime.settings import Domain

DOMAINS: tuple[Domain, ...] = get_args(Domain)
Kind = Literal["data", "file", "gym", "reasoning-gym", "embedded"]
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
    if spec.lower().endswith(DATA_SUFFIXES) or is_data_folder(spec):
        return "data"
    if ".py:" in spec:
        return "file"
    family, colon, _ = spec.partition(":")
    return cast(Kind, family) if colon and family in ("gym", "reasoning-gym") else "embedded"


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
