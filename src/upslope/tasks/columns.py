"""Which columns of a table hold the prompt and the answer: as the user says, or by the names that people give them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from upslope.errors import TaskError, did_you_mean
from upslope.plain_data import JsonDict
from upslope.tasks.giving import FURTHER
from upslope.tasks.table_files import Table

ROLES = ("prompt", "answer", "split", "system", *FURTHER)
PROMPTS = ("question", "problem", "query", "instruction", "input")
ANSWERS = ("solution", "output", "target", "label", "ground_truth", "reward_model.ground_truth")
"""Names of the prompt and the answer in people's data; the last is verl's, a table in the column ``reward_model``."""
MESSAGES = "messages"
"""A conversation: what the assistant says last is the answer."""
ABSENT = object()


@dataclass(frozen=True)
class Columns:
    """The column of each role; empty: there is none. A dot leads into a table: ``reward_model.ground_truth``."""

    prompt: str = "prompt"
    answer: str = "answer"
    split: str = "split"
    system: str = ""
    solution: str = "solution"
    hints: str = "hints"
    documents: str = "documents"
    category: str = "category"
    difficulty: str = "difficulty"
    chosen: str = "chosen"
    rejected: str = "rejected"
    completion: str = "completion"
    label: str = "label"
    revisions: str = "revisions"

    def remark(self) -> str:
        """What was recognised, in one line; nothing where everything has the name of its role."""
        found = {"prompt": self.prompt, "answer": self.answer}
        told = [f"{role} is {name!r}" for role, name in found.items() if name not in (role, "")]
        return f"By their names: the {', the '.join(told)} (--columns says otherwise)." if told else ""


def value_at(row: JsonDict, name: str) -> Any:
    """What a row has in a column, or `ABSENT`."""
    if name in row:
        return row[name]
    if "." not in name:
        return ABSENT
    found: Any = row
    for step in name.split("."):
        if not isinstance(found, dict) or step not in found:
            return ABSENT
        found = found[step]
    return found


def parse_columns(text: str) -> dict[str, str]:
    """``prompt=question,answer=solution`` by role. An empty name, as in ``answer=``, says that there is no such column."""
    found: dict[str, str] = {}
    for item in filter(None, (each.strip() for each in text.split(","))):
        role, equals, name = (word.strip() for word in item.partition("="))
        if not equals or role not in ROLES:
            near = did_you_mean(role, ROLES)
            raise TaskError(f"--columns {text!r}: {item!r} is not of the form ROLE=COLUMN; roles are {', '.join(ROLES)}.{near}")
        if role in found:
            raise TaskError(f"--columns {text!r} gives {role!r} twice. Leave one out.")
        found[role] = name
    if found.get("prompt", "prompt") == "":
        raise TaskError(f"--columns {text!r} leaves no prompt. Give its column: prompt=NAME.")
    return found


def choose_columns(table: Table, text: str) -> tuple[Columns, str]:
    """The columns of a table and what to tell the user about them.

    Args:
        text: as ``--columns`` gives it; roles that it leaves out are recognised by name.

    Raises:
        TaskError: if a column is not there, or several could be meant.
    """
    given, names = parse_columns(text), _names(table)
    for role, name in given.items():
        if name and name != role and not _has(table, name, names):
            raise TaskError(
                f"{table.name!r} has no column {name!r} (--columns {role}={name}).{did_you_mean(name, names)} {_list(names)}"
            )
    prompt = given.get("prompt") or _prompt(table, names)
    answer = given["answer"] if "answer" in given else _answer(table, prompt, names)
    further = {role: given.get(role, role) for role in FURTHER}
    columns = Columns(prompt, answer, given.get("split", "split"), given.get("system", ""), **further)
    said = Columns(*(role if role in given else getattr(columns, role) for role in ("prompt", "answer")))
    return columns, said.remark()


def _prompt(table: Table, names: Iterable[str]) -> str:
    if "prompt" in names or MESSAGES in names:
        return "prompt" if "prompt" in names else MESSAGES
    found = [name for name in PROMPTS if name in names]
    if len(found) == 1:
        return found[0]
    if found:
        raise TaskError(f"{table.name!r}: {_either(found)} could be the prompt. Say which: --columns prompt={found[0]}.")
    if "chosen" in names and isinstance(table.rows[0].values.get("chosen"), list):  # conversations bring what they answer
        return "prompt"
    where = f"{table.name}, {table.rows[0].place}"
    raise TaskError(f'{where}: no "prompt".{did_you_mean("prompt", names)} {_list(names)} Say which it is: --columns prompt=NAME.')


def _answer(table: Table, prompt: str, names: Iterable[str]) -> str:
    if "answer" in names or prompt == MESSAGES:
        return "answer"
    labelled = "completion" in names  # then "label" says whether that is wanted
    found = [name for name in ANSWERS if name != prompt and not (labelled and name == "label") and _has(table, name, names)]
    if len(found) > 1:
        raise TaskError(f"{table.name!r}: {_either(found)} could be the answer. Say which: --columns answer={found[0]}.")
    return found[0] if found else "answer"


def _names(table: Table) -> list[str]:
    return list(dict.fromkeys(name for row in table.rows for name in row.values))


def _has(table: Table, name: str, names: Iterable[str]) -> bool:
    if name in names:
        return True
    table_in, dot, _ = name.partition(".")
    return bool(dot) and table_in in names and any(value_at(row.values, name) is not ABSENT for row in table.rows)


def _either(names: list[str]) -> str:
    return " or ".join(map(repr, names))


def _list(names: Iterable[str]) -> str:
    return f"Its columns: {', '.join(names)[:200]}."
