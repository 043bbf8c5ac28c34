"""Data given in Python as a table of problems: a list of dicts, a table of pandas or `datasets`, or anything that yields dicts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from upslope.errors import TaskError, UserError
from upslope.fields import shown
from upslope.runtime.data_files import FOLDER
from upslope.runtime.files import write_text
from upslope.runtime.python_objects import IN_RUN, located
from upslope.tasks.plain_values import plain
from upslope.tasks.problems import kept_line
from upslope.tasks.table_files import Table, TableRow, splits_of

MOST_ROWS = 2_000_000
"""Rows that are taken from something that does not say how many it has: gigabytes, and an endless one would not stop there."""
POSSIBLE = (
    "a list of dicts such as [{'prompt': '2+2=', 'answer': '4'}], a pandas DataFrame, a Dataset or DatasetDict of datasets, "
    "anything that yields dicts, a TextTask, or a name or path as text"
)


@dataclass(frozen=True, eq=False)
class PythonTable(Table):
    """A table that was given in Python. A run keeps it as a file of JSON lines."""

    domain: ClassVar[str] = "text"

    @property
    def kept_name(self) -> str:
        """What ``run.toml`` calls it."""
        return f"{IN_RUN}/{FOLDER}/{self.name}.jsonl"

    def keep(self, folder: Path) -> str:
        """Writes it below the run's folder; what ``run.toml`` calls it."""
        write_text(Path(located(self.kept_name, folder)), "".join(map(kept_line, self.rows)))
        return self.kept_name


def as_python_table(value: Any, name: str, argument: str = "task") -> PythonTable:
    """What was given as data, read once.

    Args:
        name: what it is called from now on.
        argument: of the user's call, for messages.

    Raises:
        TaskError: if it is no table, or has a row that cannot be used.
    """
    where = f"{argument}={shown(value)}" if not _is_large(value) else f"{argument}= (a {type(value).__name__})"
    remarks: tuple[str, ...] = ()
    if isinstance(value, Mapping):
        if not value or not all(_is_table(each) for each in value.values()):
            raise TaskError(f"{where} is a dict, not a table. Give {POSSIBLE}.")
        cure = f"Give one of them: {argument}=data[{next(iter(value))!r}]."
        names, remarks = splits_of(argument, [str(split) for split in value], cure)
        rows = [row for split, table in value.items() for row in _rows(table, f"{where}, {split}", names[str(split)])]
    elif isinstance(value, (str, bytes)) or callable(value) or not isinstance(value, Iterable):
        raise TaskError(f"{where} is no data. Give {POSSIBLE}.")
    else:
        rows = list(_rows(value, where))
    if not rows:
        raise TaskError(f"{where} is empty: there is nothing to learn from. Give {POSSIBLE}.")
    return PythonTable(name, rows, remarks)


def _rows(value: Any, where: str, split: str | None = None) -> Iterator[TableRow]:
    for number, row in enumerate(_dicts(value, where), start=1):
        place = f"row {number}"
        if not isinstance(row, Mapping):
            raise TaskError(
                f"{where}, {place}: {shown(row)} is no dict. Each row is one such as {{'prompt': '2+2=', 'answer': '4'}}."
            )
        yield TableRow({str(key): plain(item, f"{where}, {place}", str(key)) for key, item in row.items()}, place, split)


def _dicts(value: Any, where: str) -> Iterator[Any]:
    """The rows of any table, and of an iterable as many as there may be."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # pandas; iterating over one gives its columns' names
        value = value.to_dicts() if hasattr(value, "to_dicts") else value.to_dict("records")  # the first is polars
    known = hasattr(value, "__len__")
    number = 0
    try:
        for number, row in enumerate(value if known else itertools.islice(value, MOST_ROWS + 1), start=1):
            if not known and number > MOST_ROWS:
                raise TaskError(
                    f"{where} yields more than {MOST_ROWS:,} rows, or never ends. Give a list, or cut it: "
                    "itertools.islice(data, 10_000)."
                )
            yield row
    except UserError:
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise TaskError(f"{where} raised {said} after {number} rows.") from error


def _is_table(value: object) -> bool:
    """Whether it is a table of pandas or `datasets`, or rows."""
    rows = isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    return hasattr(value, "column_names") or hasattr(value, "columns") or rows


def _is_large(value: object) -> bool:
    """Whether to print it would fill the screen, or read it."""
    return not isinstance(value, (int, float, str, bytes, type(None))) and not (isinstance(value, (list, dict)) and not value)
