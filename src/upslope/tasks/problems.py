"""Rows of a table as problems: prompt, answer and split where the columns say, everything else for the reward."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from upslope.errors import TaskError, did_you_mean
from upslope.plain_data import JsonDict, Message
from upslope.tasks.columns import ABSENT, MESSAGES, Columns, value_at
from upslope.tasks.giving import FURTHER, problem_with
from upslope.tasks.messages import as_messages, readable
from upslope.tasks.pairs import asked_in_conversations, problem_with_pair
from upslope.tasks.revisions import problem_with_revision
from upslope.tasks.table_files import TUNE, Table, TableRow
from upslope.tasks.text import SPLITS, Problem, Split

PREFERENCES = ("chosen", "rejected", "completion", "label")
"""Roles that are looked at together."""


@dataclass(frozen=True)
class ProblemRow:
    """A row that was found good."""

    problem: Problem
    split: Split | None = None
    """Where the row itself says it belongs."""
    place: str = ""
    """``line 3``, in its file."""


def problem_rows(table: Table, columns: Columns) -> list[ProblemRow]:
    """Every row of a table, or a `TaskError` that names the first one that cannot be used."""
    roles = _roles(columns)
    return [_problem_row(f"{table.name}, {row.place}", row, columns, roles) for row in table.rows]


def _problem_row(where: str, row: TableRow, columns: Columns, roles: _Roles) -> ProblemRow:
    given = value_at(row.values, columns.prompt)
    if given is ABSENT:
        sides = (value_at(row.values, name) for name in (columns.chosen, columns.rejected))
        given = asked_in_conversations(where, *sides) or ABSENT
    if given is ABSENT:
        raise TaskError(f'{where}: no "{columns.prompt}".{did_you_mean(columns.prompt, row.values)} {_begins(row)}')
    answer: Any = value_at(row.values, columns.answer) if columns.answer else ABSENT
    if isinstance(given, list):
        messages, answer = _conversation(where, as_messages(given, where, columns.prompt), answer, columns.prompt)
    elif isinstance(given, str) and given:
        messages = ()
    else:
        raise TaskError(f'{where}: "{columns.prompt}" must be text and not empty, but is {str(given)[:40]!r}. {_begins(row)}')
    answer = "" if answer is ABSENT or not columns.answer else _checked_answer(where, answer, columns, row)
    if columns.system:
        messages = _with_system(where, row, columns, messages, given)
    prompt = readable(messages) if messages else given
    if not (prompt.isascii() and answer.isascii()):
        _check_characters(where, {columns.prompt: prompt, columns.answer: answer})
    info = {name: value for name, value in row.values.items() if name not in roles.used} | _further(where, row, roles)
    problem = Problem(prompt, answer, info, messages, roles.unread)
    if "revisions" in info and (revision := problem.revision) is not None and (wrong := problem_with_revision(revision, prompt)):
        raise TaskError(f"{where} {wrong}. {_begins(row)}")
    return ProblemRow(problem, _split(where, row, columns), row.place)


def _conversation(where: str, messages: tuple[Message, ...], answer: Any, name: str) -> tuple[tuple[Message, ...], Any]:
    """The messages that ask, and the answer: in a column ``messages`` what the assistant says last, unless there is another."""
    if messages[-1]["role"] != "assistant":
        return messages, answer
    if name != MESSAGES or len(messages) == 1:
        cure = "Put it into the answer." if name != MESSAGES else "Put what is asked before it."
        raise TaskError(f'{where}: "{name}" ends with the assistant\'s message, which is an answer and not a prompt. {cure}')
    return messages[:-1], messages[-1]["content"] if answer is ABSENT else answer


def _with_system(where: str, row: TableRow, columns: Columns, messages: tuple[Message, ...], given: Any) -> tuple[Message, ...]:
    """The messages behind the row's own system message, where it has one."""
    system = value_at(row.values, columns.system)
    if system is ABSENT or system is None or system == "":
        return messages
    if not isinstance(system, str):
        raise TaskError(f'{where}: "{columns.system}" must be text, but is {str(system)[:40]!r}.')
    if messages and messages[0]["role"] == "system":
        raise TaskError(
            f'{where}: "{columns.prompt}" begins with a system message, and "{columns.system}" is another. Leave one out.'
        )
    return ({"role": "system", "content": system}, *(messages or ({"role": "user", "content": given},)))


def _begins(row: TableRow) -> str:
    return f"The {'line' if row.place.startswith('line') else 'row'} begins {json.dumps(row.values, ensure_ascii=False)[:60]!r}."


def _checked_answer(where: str, answer: Any, columns: Columns, row: TableRow) -> str:
    name = columns.answer
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        cure = "--columns answer= leaves it to your reward, among infos."
        raise TaskError(f'{where}: "{name}" must be text or a number, but is {str(answer)[:40]!r}; {cure} {_begins(row)}')
    if isinstance(answer, float) and not math.isfinite(answer):
        raise TaskError(f'{where}: "{name}" is {answer}, which no answer equals. Write a number, or text in quotes. {_begins(row)}')
    return str(answer)


class _Roles(NamedTuple):
    """What columns say of the roles of their rows."""

    used: frozenset[str]
    """Columns that are not among a problem's infos."""
    unread: frozenset[str]
    """Roles that no column has."""
    further: tuple[tuple[str, str], ...]
    """Roles beyond prompt and answer with their columns, preferences only where those have other names."""
    preferences: tuple[tuple[str, str], ...]
    plain: frozenset[str]
    """The columns of `further`; empty where one of them leads into a table."""


def _roles(columns: Columns) -> _Roles:
    """Found out once for all rows of a table."""
    named = [(role, getattr(columns, role)) for role in FURTHER]
    further = tuple((role, name) for role, name in named if name and (role not in PREFERENCES or name != role))
    return _Roles(
        frozenset(role for role in ("prompt", "answer", "split") if getattr(columns, role) == role),
        frozenset(role for role, name in named if not name),
        further,
        tuple((role, name) for role, name in named if name and role in PREFERENCES),
        frozenset(name for _, name in further) if not any("." in name for _, name in further) else frozenset(),
    )


def _further(where: str, row: TableRow, roles: _Roles) -> JsonDict:
    """What the row says of its problem beyond prompt and answer, by role, where a column of another name says it."""
    found: JsonDict = {}
    values = row.values
    # Most rows have few of them, and a file may have many rows.
    for role, name in () if roles.plain and roles.plain.isdisjoint(values) else roles.further:
        value = value_at(values, name)
        if value is ABSENT:
            continue
        if wrong := problem_with(role, value):
            cure = f"--columns {role}= leaves it to your reward, among infos"
            raise TaskError(f'{where}: "{name}" {wrong}. Mend it, or {cure}. {_begins(row)}')
        if name != role:
            found[role] = value
    preferences: JsonDict = {}
    for role, name in roles.preferences:
        value = value_at(values, name) if "." in name else values.get(name)
        if value is not ABSENT and value is not None:
            preferences[role] = value
    if preferences and preferences.keys() != {"label"} and (wrong := problem_with_pair(preferences)):
        raise TaskError(f"{where} {wrong}. {_begins(row)}")
    return found


def _split(where: str, row: TableRow, columns: Columns) -> Split | None:
    if row.split is not None and columns.split != "split":
        raise TaskError(f"{where}: the dataset is in splits, and --columns split={columns.split} would be others. Leave that out.")
    said: Any = value_at(row.values, columns.split) if columns.split else ABSENT
    if said is ABSENT or said is None or said == "":
        said = row.split
    if said is None:
        return None
    if said in TUNE:
        return "tune"
    if said not in SPLITS:
        near = did_you_mean(str(said), SPLITS)
        raise TaskError(f'{where}: "{columns.split}" must be one of {", ".join(SPLITS)}, but is {said!r}.{near}')
    return cast(Split, said)


def _check_characters(where: str, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        if text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):x}"
            raise TaskError(f'{where}: "{name}" holds {half}, half of a character, at place {error.start + 1}. Mend it.') from None


def kept_line(row: TableRow) -> str:
    """A row as a line of JSONL that reads as the same row."""
    values: JsonDict = row.values if row.split is None else {**row.values, "split": row.split}
    return json.dumps(values, ensure_ascii=False) + "\n"
