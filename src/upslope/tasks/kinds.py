"""Kinds of tasks and their domains: the one place where the text that names a task says whether it is text or an environment.

No torch here, and nothing that a task names is loaded. Everybody else reads the domain of the plan, of ``run.toml`` or of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast, get_args

from upslope.plain_data import JsonDict
from upslope.runtime.settings import Domain

DOMAINS: tuple[Domain, ...] = get_args(Domain)
Kind = Literal["jsonl", "file", "gym", "reasoning-gym", "embedded"]
ENVIRONMENTS: frozenset[Kind] = frozenset({"gym"})
"""Kinds whose tasks are acted in; those of all others are answered in text."""


def kind_of(spec: str) -> Kind:
    """How a task's name is to be read; names that stand for nothing count as embedded, where they are refused."""
    if spec.endswith(".jsonl"):
        return "jsonl"
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
