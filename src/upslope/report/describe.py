"""Methods in words and as plain data: the catalogue as a table, one method as what it changes, or as all that it does."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Sequence
from functools import cache
from importlib import resources

from upslope.methods import catalogue
from upslope.plain_data import JsonDict
from upslope.policies.control.networks import in_domains
from upslope.report.math_words import plain_math
from upslope.report.places import method_source, part_source
from upslope.types import SLOTS, Acting, DrawnData, Learned, Method, ModelNetwork, Network, Part, Solved
from upslope.types.method import SETTINGS

WHEN = {
    "step": "once a step",
    "update": "once an update",
    "group": "per group",
    "sequence": "per sequence",
    "segment": "per segment",
    "decision": "per decision",
}
WHEN_OF: dict[type[Part], str] = {
    Acting: "at every step of the environments",
    DrawnData: "once an update, to draw its rows",
    Solved: "before the steps in which it is due",
    ModelNetwork: "wherever its model is asked",
    Network: "wherever the policy is asked",
}
"""Of parts that no scope describes."""
LEARNS = {"actor-critic": "learns from stored experience", "measure": "measures data, trains nothing"}
"""What is said of a learner that is not the usual one."""


def when(part: Part) -> str:
    """When a part runs, in words."""
    if isinstance(part, Learned):
        often = "in every update" if part.every == 1 else f"in every {ordinal(part.every)} update"
        return f"{often}, {'before' if part.order < 0 else 'after'} the policy"
    for kind, words in WHEN_OF.items():
        if isinstance(part, kind):
            return words
    return WHEN[part.seen_at_once()] + (", prepared once an update" if part.prepares() else "")


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


_INDENT = " " * 4
UNCHECKED: JsonDict = {"checks": "none", "claim": "not measured", "tests": []}


def table(rows: Sequence[Sequence[str]], header: Sequence[str], width: int = 0) -> str:
    """Aligned columns; with a ``width`` the last column is cut to it."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
    text = ["  ".join([*(cell.ljust(room) for cell, room in zip(line, widths, strict=False)), line[-1]]).rstrip() for line in lines]
    if width:
        text = [line if len(line) <= width else line[: width - 1] + "…" for line in text]
    return "\n".join(text)


def methods_table(methods: Sequence[Method], width: int = 0) -> str:
    """A line per method."""
    told = checks()
    rows = []
    for each in methods:
        known = told.get(each.name, UNCHECKED)
        rows.append((each.name, str(each.paper.year), each.parent or "-", known["checks"], known["claim"], each.differs))
    return table(rows, ("name", "year", "parent", "checks", "claim", "differs"), width)


@cache
def checks() -> dict[str, JsonDict]:
    """How each method of the catalogue was checked and in which tests, and how the paper's claim came out on small tasks."""
    file = resources.files("upslope.methods") / "checks.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def slots(method: Method) -> dict[str, str]:
    """What fills each slot, as text; empty slots are left out."""
    return {slot: text for slot, (_, text) in method.diff(method.without(*SLOTS)).items()}


def method_record(method: Method) -> JsonDict:
    """A method as plain data."""
    return {
        "name": method.name,
        "family": method.family,
        "learner": method.learner,
        "offline": method.offline,
        "paper": dataclasses.asdict(method.paper),
        "parent": method.parent,
        "differs": method.differs,
        "slots": slots(method),
        "source": method_source(method),
        **checks().get(method.name, UNCHECKED),
    }


def changes(method: Method) -> dict[str, tuple[str, str]]:
    """What each slot holds in the parent and here, where they differ; empty without a known parent."""
    parent = catalogue().get(method.parent)
    return method.diff(parent) if parent is not None else {}


def show_record(method: Method, flat: bool = False) -> JsonDict:
    """What ``show`` says, as plain data."""
    record = method_record(method) | {
        "formula": method.formula,
        "use_when": method.use_when,
        "notes": method.notes,
        "not_repeatable": repeats_not(method),
        "on": {domain: dict(knobs) for domain, knobs in method.on},
        "changes": {slot: {"from": old, "to": new} for slot, (old, new) in changes(method).items()},
    }
    return record | {"parts": [_part_record(path, part) for path, part in method.parts()]} if flat else record


def show_text(method: Method, flat: bool = False, width: int = 100) -> str:
    """A method for people: its paper, its formula, and what it changes or, ``flat``, all that it does in the order it is done."""
    blocks = [_heading(method, width)]
    if method.formula:
        blocks.append(method.formula)
    if not method.parts():
        blocks.append("no parts: it measures data and trains nothing")
    elif flat:
        blocks.append(_flat(method, width))
    else:
        blocks.append(_composition(method))
    rows = [(domain, f"{knob_name(path)} = {knob_value(value)}") for domain, knobs in method.on for path, value in knobs]
    if method.family == "control" and method.policy is None and method.learner == "policy-gradient":
        rows.append(("control", f"policy = {in_domains(method, 'control').policy}"))
    if rows:
        blocks.append("by kind of task\n" + table(rows[1:], rows[0]))
    if told := repeats_not(method):
        blocks.append(textwrap.fill(told, width))
    if method.use_when:
        blocks.append(textwrap.fill(f"use it when {method.use_when}", width))
    if method.notes:
        blocks.append("notes\n" + textwrap.fill(method.notes, width, initial_indent="  ", subsequent_indent="  "))
    if found := _where(method, width):
        blocks.append(found)
    return "\n\n".join(blocks)


def repeats_not(method: Method) -> str:
    """Why two runs of a method with the same seed differ; nothing where they do not."""
    readers = [path for path, part in method.parts() if "seconds" in part.all_needs()]
    if not readers:
        return ""
    return f"not repeatable: {', '.join(readers)} reads how long things took, which is measured and never the same twice"


def _where(method: Method, width: int) -> str:
    """Its source file, and the tests that cover it."""
    named = {"source": method_source(method), "tests": ", ".join(checks().get(method.name, UNCHECKED)["tests"])}
    return "\n".join(
        textwrap.fill(f"{what:<8}{where}", width, subsequent_indent=" " * 8, break_on_hyphens=False)
        for what, where in named.items()
        if where
    )


def _heading(method: Method, width: int) -> str:
    how = LEARNS.get(method.learner, "")
    how += ", made for a dataset alone" if method.offline else ""
    lines = [f"{method.name} ({', '.join(filter(None, (method.family, how)))})", f"{method.paper}"]
    return "\n".join([*lines, *textwrap.wrap(method.differs, width)])


def _composition(method: Method) -> str:
    changed = changes(method)
    if not changed:
        rows = list(slots(method).items())
        why = f"the same parts as {method.parent}" if method.parent in catalogue() else "all of its parts"
        return f"{why}\n" + table(rows[1:], rows[0])
    room = max(len(old) for old, _ in changed.values())
    rows = [(slot, f"{old.ljust(room)}  ->  {new}") for slot, (old, new) in changed.items()]
    return f"against {method.parent}\n" + table(rows[1:], rows[0])


# -- all that a method does ------------------------------------------------------------------------------------------------


def _flat(method: Method, width: int) -> str:
    return "\n\n".join(_part_text(_part_record(path, part), width) for path, part in method.parts())


def _part_record(path: str, part: Part) -> JsonDict:
    about, formulas, meanings = read_docstring(type(part))
    knobs = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return {
        "path": path,
        "part": type(part).__name__,
        "source": part_source(type(part)),
        "when": when(part),
        "about": about,
        "formula": formulas,
        "needs": sorted(part.all_needs()),
        "knobs": {
            name: {"value": value, "about": meanings.get(name, "")}
            for name, value in knobs.items()
            if not holds_parts(value)  # these stand below, under paths of their own
        },
    }


def _part_text(record: JsonDict, width: int) -> str:
    def wrapped(text: str, indent: str, rest: str | None = None) -> str:
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent if rest is None else rest)

    lines = [f"{record['path']}  {record['part']}, {record['when']}", f"{_INDENT}in {record['source']}"]
    if record["about"]:
        lines.append(wrapped(record["about"], _INDENT))
    lines += [_INDENT * 2 + formula for formula in record["formula"]]
    for name, knob in record["knobs"].items():
        said = f"{name} = {knob_value(knob['value'])}"
        lines.append(wrapped(f"{said}  {knob['about']}" if knob["about"] else said, _INDENT, _INDENT * 2))
    if record["needs"]:
        lines.append(f"{_INDENT}reads {', '.join(record['needs'])}")
    return "\n".join(lines)


def holds_parts(value: object) -> bool:
    """Whether a field holds parts; a tuple of numbers is a knob."""
    return isinstance(value, Part) or (isinstance(value, tuple) and any(isinstance(item, (Part, tuple)) for item in value))


def knob_name(path: str) -> str:
    """A knob by its path, a setting of the run by its flag."""
    return f"--{path.removeprefix(SETTINGS).replace('_', '-')}" if path.startswith(SETTINGS) else path


def knob_value(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(knob_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def read_docstring(kind: type) -> tuple[str, list[str], dict[str, str]]:
    """A part's docstring as its first paragraph, its formulas, and what it says of each field."""
    text = inspect.cleandoc(kind.__doc__ or "")
    if text.startswith(f"{kind.__name__}("):  # what dataclasses write where nobody wrote anything
        text = ""
    body = text.partition("\nFields:\n")[0]
    paragraphs = body.split("\n\n")
    formulas = []
    for paragraph in paragraphs:
        if paragraph.lstrip().startswith(".. math::"):
            formulas.append(" ".join(plain_math(paragraph.replace(".. math::", "")).split()))
    return _plain(paragraphs[0]), formulas, _field_texts(inherited_fields(kind))


def inherited_fields(kind: type) -> str:
    """What docstrings say of the fields of a class, of its own and of those it inherits."""
    said = [inspect.cleandoc(each.__doc__ or "").partition("\nFields:\n")[2].rstrip() for each in reversed(kind.__mro__)]
    return "\n".join(text.partition("\n\n")[0] for text in said if text)


def _field_texts(section: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\S)", "\n" + section.split("\n\n")[0]):
        names, colon, meaning = entry.strip().partition(":")
        if colon:
            found |= {name.strip(): _plain(meaning) for name in names.split(",")}
    return found


def _plain(text: str) -> str:
    """Without the marks of reStructuredText."""
    text = re.sub(r":math:`([^`]*)`", lambda found: plain_math(found[1]), text)
    return " ".join(text.replace("``", "").replace("`", "").split())
