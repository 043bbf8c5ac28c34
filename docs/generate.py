"""Writes the generated pages: a page per method of the catalogue, their index, the command line's reference, and what fits.

The pages say what the code says: slots, knobs and formulas come from the methods, flags from the parser. What code cannot know, how
a method was checked against others, comes from `checks`. ``make docs`` runs this; a test holds that its result is committed.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
from functools import cache
from pathlib import Path

from checks import EVERY_METHOD, brief
from checks import collect as _collect
from claim_records import claim_records
from sizes_page import sizes_page

from upslope.cli.parsers import ABOUT, EXAMPLES, parsers
from upslope.methods import catalogue, measures
from upslope.objective import estimator
from upslope.parts import SLOT_NAMES
from upslope.report.describe import changes, holds_parts, inherited_fields, knob_name, knob_value, repeats_not, when
from upslope.report.places import method_source, part_source
from upslope.testing.drawn import kinds
from upslope.types import Method, Part
from upslope.types.part_index import own_parts

DOCS = Path(__file__).resolve().parent
MADE = "<!-- Written by docs/generate.py; change the code it describes and run `make docs`. -->"

CHECKS_FILE = DOCS.parent / "src" / "upslope" / "methods" / "checks.json"
"""What `upslope methods` says of the checks."""


CATALOGUE_FILE = DOCS.parent / "src" / "upslope" / "methods" / "catalogue.json"
"""What the catalogue shows beside what the code says: commands to try a method with, and what its claims came to."""


PARTS_STUB = DOCS.parent / "src" / "upslope" / "parts.pyi"
"""What type checkers and editors see of `upslope.parts`, whose names come on demand."""


@cache
def collect() -> dict:
    """What was checked, read once."""
    return _collect()


def pages() -> dict[Path, str]:
    """Every generated page by its path."""
    found = {DOCS / "methods" / f"{name}.md": method_page(method) for name, method in catalogue().items()}
    found |= {DOCS / "methods" / f"{name}.md": measure_page(method) for name, method in measures().items()}
    found[DOCS / "methods" / "README.md"] = index_page()
    found[DOCS / "command-line.md"] = command_line_page()
    found[DOCS / "sizes.md"] = _page("What fits", *sizes_page())
    told = {name: brief(collect().get(name, {})) for name in catalogue()}
    found[CHECKS_FILE] = json.dumps(told, indent=1, sort_keys=True) + "\n"
    found[CATALOGUE_FILE] = catalogue_file()
    found[PARTS_STUB] = parts_stub()
    return found


def main() -> None:
    made = pages()
    for path, text in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for stale in set((DOCS / "methods").glob("*.md")) - set(made):
        stale.unlink()
    print(f"{len(made)} pages in {DOCS}")


# -- methods ---------------------------------------------------------------------------------------------------------------


def index_page() -> str:
    """The catalogue as a table of links."""
    rows = []
    for m in catalogue().values():
        claim = brief(collect().get(m.name, {}))["claim"]
        rows.append((f"[{m.name}]({m.name}.md)", m.family, str(m.paper.year), _link(m.parent) or "-", claim, m.differs))
    about = f"""The {len(rows)} methods of the catalogue, oldest first. `upslope methods` prints the same list. *Claim* counts the
statements of the paper that were measured on small tasks here, and how many held; the method's page has the numbers.
Measures of data, which train nothing: {", ".join(_link(name) for name in measures())}."""
    return _page("Methods", about, _table(("method", "family", "year", "parent", "claim", "differs"), rows))


def measure_page(method: Method) -> str:
    """What is measured, and how to ask for it."""
    return _page(
        method.name,
        _paper(method).partition(" It has no parent.")[0],
        f"{method.differs[0].upper()}{method.differs[1:]}.",
        f"Use it when {method.use_when}.",
        f"```text\n{_aligned(method.formula)}\n```",
        "## Notes and doubts",
        method.notes,
        "## The paper's claim, measured",
        *filter(None, _claims(method)),
        "## Run it",
        "It is part of what `upslope data describe NAME` prints; [the page on data](../data.md) shows it.",
    )


def method_page(method: Method) -> str:
    """All there is to say of a method."""
    return _page(
        method.name,
        _paper(method),
        f"{method.differs[0].upper()}{method.differs[1:]}.",
        f"Use it when {method.use_when}." if method.use_when else "",
        f"```text\n{_aligned(method.formula)}\n```" if method.formula else "",
        *_differences(method),
        "## Parts",
        f"In the order in which they act. A knob is set with its path, as in `--set {_example(method)}`; a position such as `.0` "
        "may be left out where a slot holds one part.",
        *[_part(path, part) for path, part in method.parts()],
        *_domains(method),
        *_costs(method),
        *([f"Two runs with one seed differ: {told}."] if (told := repeats_not(method)) else []),
        *(["## Notes and doubts", method.notes] if method.notes else []),
        *_checks(method),
        "## Run it",
        f"```sh\n{_commands(method)}\n```",
    )


def _example(method: Method) -> str:
    return "data.gamma=0.98" if method.learner == "actor-critic" else "surrogate.high=0.3"


def _paper(method: Method) -> str:
    paper = method.paper
    title = f"[{paper.title}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else paper.title
    number = f", arXiv {paper.arxiv}" if paper.arxiv else ""
    parent = f" Derived from {_link(method.parent)}." if method.parent else " It has no parent."
    source = f"src/{method_source(method)}"
    return f"{title} ({paper.year}{number}). Family `{method.family}`.{parent}\nCode: [`{source}`](../../{source})."


def _aligned(formula: str) -> str:
    """A formula with each of its definitions on a line of its own."""
    return re.sub(r",\s{2,}", ",\n  ", formula)


def _differences(method: Method) -> list[str]:
    changed = changes(method)
    if not changed:
        return []
    rows = [(f"`{slot}`", f"`{old}`", f"`{new}`") for slot, (old, new) in changed.items()]
    return [f"## What differs from {method.parent}", _table(("slot", method.parent, method.name), rows)]


def _part(path: str, part: Part) -> str:
    body, meanings = _docstring(type(part))
    source = f"src/{part_source(type(part))}"
    runs = f"Runs {when(part)}. Code: [`{source}`](../../{source})."
    if needs := sorted(part.all_needs()):
        runs += f" Reads {', '.join(f'`{need}`' for need in needs)}."
    lines = [f"### `{path}`: {type(part).__name__}", body, runs]
    knobs = [(f.name, getattr(part, f.name)) for f in dataclasses.fields(part)]
    rows = [
        (f"`{path}.{name}`", f"`{knob_value(value)}`", meanings.get(name, ""))
        for name, value in knobs
        if not holds_parts(value)  # these stand below, under paths of their own
    ]
    return "\n\n".join([*lines, _table(("knob", "value", "meaning"), rows)] if rows else lines)


def _docstring(kind: type) -> tuple[str, dict[str, str]]:
    """A part's docstring as Markdown, without its list of fields, and what that list says of each."""
    body = inspect.cleandoc(kind.__doc__ or "").partition("\nFields:\n")[0]
    paragraphs = [_markdown(paragraph) for paragraph in re.split(r"\n\s*\n", body.strip())]
    meanings: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\S)", "\n" + inherited_fields(kind)):
        names, colon, meaning = entry.strip().partition(":")
        if colon:
            meanings |= {name.strip(): _markdown(meaning) for name in names.split(",")}
    return "\n\n".join(paragraphs), meanings


def _markdown(paragraph: str) -> str:
    """A paragraph of reStructuredText as Markdown, on one line."""
    if paragraph.lstrip().startswith(".. math::"):
        return f"```math\n{inspect.cleandoc(paragraph.replace('.. math::', '         '))}\n```"
    text = " ".join(paragraph.split())
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    return text.replace("``", "`")


def _domains(method: Method) -> list[str]:
    if not method.on:
        return []
    rows = [(domain, f"`{knob_name(path)}`", f"`{knob_value(value)}`") for domain, knobs in method.on for path, value in knobs]
    told = "Knobs and settings with which a run is made; `--set` and flags come after them."
    return ["## By kind of task", told, _table(("task", "knob", "value"), rows)]


def _costs(method: Method) -> list[str]:
    """Time and memory beside GRPO, as measured by bench/cost.py."""
    measured = collect().get(method.name, {}).get("cost")
    if not measured:
        return []
    text = (
        f"A step took {measured['time']:.2f} times that of GRPO without its KL term (middle half of {measured['windows']} windows: "
    )
    text += f"{measured['low']:.2f} to {measured['high']:.2f}), and peak memory was {measured['memory']:.2f} times GRPO's: "
    text += "the default tiny model, two updates a step, measured side by side by `bench/cost.py`."
    if measured["time"] > DEAR:
        reasons = _reasons(method)
        text += f" Why more: {'; '.join(reasons)}." if reasons else " Why it is more is not known."
    return ["## Cost", text]


DEAR = 1.1
"""A step that takes longer than this many times GRPO's is explained."""


def _reasons(method: Method) -> list[str]:
    """What in a method's composition makes a step longer than that of GRPO without its KL term."""
    needs, dropped = method.needs(), getattr(method.surrogate, "silent_without_advantage", False)
    early = sorted(estimator.early_columns(method))
    proximal = sorted(need.split(".")[1] for need in needs if need.startswith("proximal.") and need != "proximal.logp")
    compared = sorted({need.split(".")[1] for need in needs if need.startswith("reference.")})
    found = {
        f"each update begins with a forward pass for {', '.join(early)} of all its rows": bool(early),
        f"one more column of the policy before the updates ({', '.join(proximal)}), for all rows": bool(proximal),
        f"a forward pass of each policy it compares with ({', '.join(compared)})": bool(compared),
        f"learned beside the policy: {', '.join(name for name, _ in method.models)}": bool(method.models),
        "further rows in the step": bool(method.data),
        "updates of its own for further terms": bool(method.terms),
        "samples again in place of what its filter drops": any(part.refill for part in method.filter),
        "its own way of sampling": method.rollout is not None,
        "its own view of the policy": method.policy is not None,
        "rows without an advantage are computed too": bool(method.regularize) or not dropped,
    }
    return [reason for reason, holds in found.items() if holds]


def _checks(method: Method) -> list[str]:
    record = collect().get(method.name, {})
    identity = ", ".join(f"`{file}`" for file in record.get("identity", [])) or "none"
    oracle = record.get("oracle", {})
    against = "; ".join(text for texts in oracle.values() for text in texts) or "no independent implementation"
    rows = [
        ("identity", "special cases in which it must equal another method or the exact gradient", identity),
        ("oracle", against, ", ".join(f"`{file}`" for file in oracle) or "none"),
        ("table", "edge cases, cuts of an update, masks, seeds, resume", ", ".join(f"`{file}`" for file in EVERY_METHOD[:2])),
        ("learning", "improves a small task", f"`{EVERY_METHOD[2]}`"),
    ]
    return ["## Checks", _table(("check", "what", "where"), rows), "### The paper's claim, measured", *_claims(method)]


def _claims(method: Method) -> list[str]:
    """What the claim pages say of a method: their lines that begin with its name, under their own headings."""
    said = []
    variant = re.compile(rf"- {re.escape(method.name)} \S+=\S+: ")  # as it was with a setting
    for page in sorted((DOCS / "claims").glob("*.md")):
        title, heading, shown = page.stem, "", ""
        measured = method.learner == "measure" and page.stem == method.name  # it trains nothing, so all lines are about its data
        lines = []
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("# "):
                title = line[2:]
            elif line.startswith("## "):
                heading = line[3:]
            elif (
                line.startswith((f"- {method.name}: ", f"- {method.name}+"))
                or variant.match(line)
                or (measured and line.startswith("- ") and "**" in line)
            ):
                if heading != shown:
                    lines += ["", f"{heading}:", ""] if lines else [f"{heading}:", ""]
                    shown = heading
                lines.append(line)
        if lines or page.stem == method.name:
            said += [f"From [{title}](../claims/{page.name}), which has the settings and the numbers.", "\n".join(lines)]
    return said or ["Not measured yet."]


def _commands(method: Method) -> str:
    lines = [f"upslope train {method.name} --task {_usual_task(method)}"]
    if method.learner == "actor-critic":
        task = _usual_task(method)
        data = f"upslope data make mine --task {task} --recipe {'random' if task == 'gym:CartPole-v1' else 'mixed:expert=0.1'}"
        needs = method.offline or any(getattr(part, "needs_dataset", False) for _, part in method.parts())
        lines = [data, f"upslope train {method.name} --data mine"] if needs else lines
    return "\n".join([*lines, f"upslope show {method.name} --flat"])


def _usual_task(method: Method) -> str:
    """A small task that it can be tried on."""
    if method.learner == "actor-critic":
        return {"continuous": "gym:Pendulum-v1", "discrete": "gym:CartPole-v1"}[kinds(method)[0]]
    needed = {word for _, part in method.parts() for word in part.needs_of_task}
    if method.family == "control":
        return "gym:CartPole-v1"
    return "rulebook" if "documents" in needed else "reverse+sort" if "several categories" in needed else "reverse"


def _link(name: str) -> str:
    return f"[{name}]({name}.md)" if name else ""


def catalogue_file() -> str:
    """One method, one page to a line, so that a change is seen where it is."""
    told = {
        "commands": {name: _commands(method).splitlines()[:-1] for name, method in catalogue().items()},
        "claims": claim_records(DOCS / "claims"),
    }
    blocks = []
    for key, entries in told.items():
        lines = [f"  {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in entries.items()]
        blocks.append(f' "{key}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def parts_stub() -> str:
    """`upslope.parts` for type checkers: each name from the module that defines it today."""
    homes = {name: "upslope.types" for name in SLOT_NAMES} | {part.__name__: part.__module__ for part in own_parts().values()}
    lines = [f"from {home} import {name} as {name}" for name, home in sorted(homes.items(), key=lambda item: (item[1], item[0]))]
    return "\n".join(["# Written by docs/generate.py: run `make docs`.", "# ruff: noqa", *lines, "", "__all__: list[str]", ""])


# -- the command line ------------------------------------------------------------------------------------------------------

CONVENTIONS = """Progress goes to standard error and results to standard output, so either can be kept without the other.
`train` and `resume` print the folder of the run as their last line. The exit code is 0 when it is done, 2 when there is something
to mend (the message says what), 3 when the run is too large for memory or disk and 130 when it was interrupted. Flags cannot be
abbreviated."""


def command_line_page() -> str:
    """Every command with every flag."""
    _, commands = parsers()
    rows = [(f"[`{name}`](#{name.replace(' ', '-')})", _help(sub.description)) for name, sub in commands.items()]
    blocks = [ABOUT, _table(("command", ""), rows), f"```text\n{EXAMPLES}\n```", CONVENTIONS]
    for name, sub in commands.items():
        blocks += [f"## {name}", _help(sub.description), f"```text\n{_usage(name, sub)}\n```", *_flag_tables(sub)]
    return _page("The command line", *blocks)


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    words = [str(a.metavar) if a.nargs != "?" else f"[{a.metavar}]" for a in parser._actions if not a.option_strings]
    return parser.usage or " ".join(["upslope", name, *words, "[flags]"])


def _flag_tables(parser: argparse.ArgumentParser) -> list[str]:
    blocks = []
    for group in parser._action_groups:
        actions = [
            action for action in group._group_actions if action.help not in (None, "", argparse.SUPPRESS) and action.dest != "help"
        ]
        if not actions:
            continue
        if group.title not in ("positional arguments", "options"):
            blocks += [f"### {parser.prog.partition(' ')[2]}: {group.title}", *([group.description] if group.description else [])]
        blocks.append(_table(("argument" if group.title == "positional arguments" else "flag", "meaning"), map(_flag_row, actions)))
    return blocks


def _flag_row(action: argparse.Action) -> tuple[str, str]:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`", _help(action.help)
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    value = f" [{value.strip()}]" if action.nargs == "?" else value
    return ", ".join(f"`{flag}{value}`" for flag in action.option_strings), _help(action.help)


def _help(text: str | None) -> str:
    """Help as Markdown in which no character is markup."""
    return re.sub(r"([*_<])", r"\\\1", (text or "").replace("%%", "%"))


# -- Markdown --------------------------------------------------------------------------------------------------------------


def _page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", MADE, *(block for block in blocks if block)]) + "\n"


def _table(header: tuple[str, ...], rows) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    main()
