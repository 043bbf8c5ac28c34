"""Pages of the site that stand in no file: the front with the catalogue, the family tree, the list of claims, the API reference."""

from __future__ import annotations

import importlib
import inspect
from html import escape
from pathlib import Path
from typing import Any

from upslope.methods import own_methods
from upslope.report.family_tree import family_tree_svg
from upslope.types import SLOT_CLASSES, Part
from upslope.types.part_index import own_parts

MENU = {
    "Start": ["Start <start>", "All pages <documents>", "concepts", "unified"],
    "Methods": ["The catalogue <self>", "tree", "All methods <methods/index>", "claims/index"],
    "Tasks and rewards": ["your-own-task", "rewards", "sandbox", "demonstrations", "preferences", "reward-models", "curricula",
                          "control", "data"],
    "Running": ["python", "runs", "comparing", "board", "where-it-runs", "cluster", "engines", "sizes", "performance",
                "security"],
    "Coming from": ["coming-from-trl", "coming-from-stable-baselines3", "coming-from-sb3-d3rlpy", "coming-from-verl"],
    "Extending": ["your-own-method", "contributing"],
    "Reference": ["command-line", "reference/index", "public", "changes"],
}  # fmt: skip
"""The menu: what somebody new wants first stands first."""
MODULES = {
    "upslope": "What `import upslope` gives: training, comparing, looking at runs, data.",
    "upslope.methods": "Methods by name, and how they are found and composed.",
    "upslope.types": "The nouns that everybody shares: methods, batches, slots, what policies and engines must do.",
    "upslope.tasks": "What a task of yours needs.",
    "upslope.rewards": "Rewards that are built in, and how they are put together.",
    "upslope.testing": "For tests of your own methods.",
}
"""Public modules, beside `upslope.parts`, whose parts have a page for each slot."""


def made_pages(data: dict[str, Any], claims: dict[str, Any]) -> dict[str, str]:
    """Every made page by its path."""
    return {
        "index.md": front(data),
        "tree.md": tree(data),
        "claims/index.md": claims_index(data, claims),
        **reference(),
    }


def front(data: dict[str, Any]) -> str:
    """The catalogue, and the menu of everything else."""
    menus = "\n\n".join(
        "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]) for title, pages in MENU.items()
    )
    return f"""# Find a method

{len(data["methods"])} policy-optimization methods on one engine: each is a composition of small parts, with its formula, what its
paper claims as it was measured here, and the command that runs it. New here? [Start](start.md), then the [concepts](concepts.md);
all pages are [listed](documents.md), and the [family tree](tree.md) shows who derives from whom.

```{{raw}} html
<div class="catalogue-page"><div id="catalogue"><noscript><p>Searching and sorting need JavaScript, which comes with this page. \
<a href="methods/index.html">All methods as a plain table.</a></p></noscript></div></div>
<script src="_static/catalogue-data.js"></script>
<script src="_static/catalogue.js"></script>
```

{menus}
"""


def tree(data: dict[str, Any]) -> str:
    """The family tree with its legend."""
    picture = family_tree_svg(data["methods"], lambda name: f"methods/{name}.html")
    families = "".join(f'<li class="family-{escape(name)}"><i></i>{escape(name)}</li>' for name in data["families"])
    verdicts = "".join(
        f'<li><i class="{name.replace(" ", "-")}"></i><b>{escape(name)}</b>: {escape(told)}</li>'
        for name, told in data["verdicts"].items()
    )
    return f"""# Family tree

Each method is its parent with a few slots filled otherwise: they stand on the line that leads to it. Each is a link to its page.
The [catalogue](index.md) sorts and searches the same methods.

```{{raw}} html
<ul class="tree-legend" aria-label="Families">{families}</ul>
<details class="tree-help"><summary>What the dots say</summary><ul class="tree-legend">{verdicts}</ul></details>
<div class="tree-box" tabindex="0" role="region" aria-label="The tree, which can be scrolled">{picture}</div>
```
"""


def claims_index(data: dict[str, Any], claims: dict[str, Any]) -> str:
    """All pages of claims with what came out."""
    rows = []
    for page, told in claims.items():
        verdicts = [line["verdict"] for lines in told["judged"].values() for line in lines]
        out = f"{verdicts.count('held')} of {len(verdicts)} held" if verdicts else "no statement judged"
        against = verdicts.count("did not hold")
        methods = sorted({each["name"] for each in data["methods"] if page in each["claim"]["pages"]})
        links = ", ".join(f"[{name}](../methods/{name}.md)" for name in methods) or "-"
        cells = (f"[{told['title']}]({page}.md)", out + (f", {against} did not" if against else ""), links)
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(
        [
            "# Claims, measured",
            "",
            "What papers claim, measured here on small tasks over several seeds, whatever came out. Each page has the settings,",
            "the numbers with their intervals, and the curves; `make claims METHOD=name` makes one anew.",
            "",
            "| page | statements | methods |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


# -- the API ---------------------------------------------------------------------------------------------------------------


def reference() -> dict[str, str]:
    """A page for each public module, and one for the parts of each slot."""
    seen: dict[int, str] = {}
    found = {}
    for module, about in MODULES.items():
        names = [name for name in importlib.import_module(module).__all__ if not name.startswith("__")]
        found[f"reference/{module}.rst"] = _module_page(module, about, names, seen)
    slots = _parts_by_slot()
    for slot, parts in slots.items():
        found[f"reference/parts-{slot}.rst"] = _parts_page(slot, parts)
    listed = "\n".join([*(f"   {module}" for module in MODULES), *(f"   parts-{slot}" for slot in slots)])
    intro = (
        "What may be built on, from the docstrings of what is public; :doc:`/public` says what that means and how it may change.\n"
    )
    intro += "Every part is imported from ``upslope.parts``, every method from ``upslope.methods``. :ref:`genindex` has all names."
    found["reference/index.rst"] = f"{_title('API reference')}\n{intro}\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}\n"
    return found


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n"


def _module_page(module: str, about: str, names: list[str], seen: dict[int, str]) -> str:
    blocks = [_title(module), about.replace("`", "``"), f".. py:module:: {module}"]
    home = importlib.import_module(module)
    for name in names:
        value = getattr(home, name)
        if id(value) in seen and (inspect.isclass(value) or callable(value)):
            blocks.append(f"``{name}`` is :py:obj:`{seen[id(value)]}`.")
            continue
        seen[id(value)] = f"{module}.{name}"
        blocks.append(_entry(module, name, value))
    if module == "upslope.methods":
        links = ", ".join(f":doc:`{name} </methods/{name}>`" for name in own_methods())
        blocks.append(f"And every method, with underscores for dashes: {links}.")
    return "\n\n".join(blocks) + "\n"


def _entry(module: str, name: str, value: Any) -> str:
    if inspect.isclass(value) and value.__module__.startswith("upslope"):
        return f".. autoclass:: {module}.{name}\n" + ("" if issubclass(value, Part) else "   :members:\n")
    if inspect.isfunction(value):
        return f".. autofunction:: {module}.{name}"
    shown = repr(value)
    kind = f"   :value: {shown}\n" if len(shown) < 120 and "0x" not in shown and "\n" not in shown else ""
    return f".. py:data:: {module}.{name}\n{kind}"


def _parts_by_slot() -> dict[str, list[type[Part]]]:
    found: dict[str, list[type[Part]]] = {slot: [] for slot in [*SLOT_CLASSES, "others"]}
    for part in own_parts().values():
        slot = next((slot for slot, kind in SLOT_CLASSES.items() if issubclass(part, kind)), "others")
        found[slot].append(part)
    return {slot: sorted(parts, key=lambda part: part.__name__) for slot, parts in found.items() if parts}


def _parts_page(slot: str, parts: list[type[Part]]) -> str:
    title = "Other parts" if slot == "others" else f"Parts: {slot}"
    about = (
        ""
        if slot == "others"
        else f"What can fill the slot ``{slot}``; the class of the slot is ``{SLOT_CLASSES[slot].__name__}``.\n"
    )
    blocks = [_title(title), about, ".. py:currentmodule:: upslope.parts"]
    blocks += [f".. autoclass:: upslope.parts.{part.__name__}" for part in parts]
    return "\n\n".join(blocks) + "\n"


def is_made(path: Path, folder: Path) -> bool:
    """Whether a staged file is one of these."""
    name = path.relative_to(folder).as_posix()
    return name in ("index.md", "tree.md", "claims/index.md") or name.startswith("reference/")
