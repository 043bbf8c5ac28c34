"""The family tree of the methods as a picture: who derives from whom, and which slots each edge changes.

Columns are generations, from left to right. The picture is SVG made of classes only, so that the page it stands in gives colours,
light and dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from upslope.plain_data import JsonDict

NODE = (146, 30)
"""Width and height of a method."""
COLUMN = 312
ROW = 40
BETWEEN = 18
"""Room between two trees."""
EDGE = 15
"""From a parent to the line that its children hang on."""
LETTERS = 25
"""Letters that an edge has room for."""


@dataclass
class Placed:
    """A method and where it stands."""

    record: JsonDict
    column: int
    y: float
    children: list[Placed]

    @property
    def x(self) -> int:
        return self.column * COLUMN + 1


def family_tree_svg(records: Sequence[JsonDict], link: Callable[[str], str]) -> str:
    """The tree of all methods, each a link."""
    roots, height = _placed(records)
    flat = list(_flat(roots))
    width = max(each.column for each in flat) * COLUMN + NODE[0] + 14
    edges = "".join(_edges(each) for each in flat)
    nodes = "".join(_node(each, link(each.record["name"])) for each in flat)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tree" viewBox="0 0 {width} {height:g}" width="{width}" '
        f'height="{height:g}" role="group" aria-label="Family tree of {len(flat)} methods">{edges}{nodes}</svg>'
    )


def changed_text(slots: Sequence[str]) -> str:
    """The slots an edge changes, as many as it has room for."""
    kept = list(slots)
    while len(kept) > 1 and len(_shortened(kept, slots)) > LETTERS:
        kept.pop()
    return _shortened(kept, slots)


def _shortened(kept: Sequence[str], slots: Sequence[str]) -> str:
    left = len(slots) - len(kept)
    return ", ".join(kept) + (f" +{left}" if left else "")


def _placed(records: Sequence[JsonDict]) -> tuple[list[Placed], float]:
    known = {each["name"] for each in records}
    children: dict[str, list[JsonDict]] = {}
    for each in sorted(records, key=lambda record: (record["year"], record["name"])):
        children.setdefault(each["parent"] if each["parent"] in known else "", []).append(each)
    top = 0.0

    def place(record: JsonDict, column: int) -> Placed:
        nonlocal top
        below = [place(child, column + 1) for child in children.get(record["name"], [])]
        if below:
            return Placed(record, column, below[0].y, below)  # beside its first: where one begins to read, there is something
        top += ROW
        return Placed(record, column, top - ROW / 2, [])

    roots = []
    for record in children.get("", []):
        roots.append(place(record, 0))
        top += BETWEEN
    return roots, top


def _flat(placed: Iterable[Placed]) -> Iterable[Placed]:
    for each in placed:
        yield each
        yield from _flat(each.children)


def _edges(parent: Placed) -> str:
    if not parent.children:
        return ""
    trunk, start = parent.x + NODE[0] + EDGE, parent.x + NODE[0]
    ends = [child.y for child in parent.children] + [parent.y]
    lines = [f'<path class="tree-edge" d="M{start} {parent.y:g}H{trunk}M{trunk} {min(ends):g}V{max(ends):g}"/>']
    for child in parent.children:
        lines.append(f'<path class="tree-edge" d="M{trunk} {child.y:g}H{child.x}"/>')
        text = changed_text(child.record["slots"])
        lines.append(f'<text class="tree-change" x="{child.x - 6}" y="{child.y - 5:g}" text-anchor="end">{escape(text)}</text>')
    return "".join(lines)


def _node(placed: Placed, href: str) -> str:
    record, (width, height) = placed.record, NODE
    verdict = record["claim"]["verdict"]
    origin = f"from {record['parent']}, changes {', '.join(record['slots'])}: " if record["parent"] else ""
    told = f"{record['name']} {record['year']} ({record['family']}); {origin}{record['differs']}; claim: {verdict}"
    return (
        f'<a href="{escape(href)}" class="tree-node family-{escape(record["family"])}">'
        f"<title>{escape(told)}</title>"
        f'<rect x="{placed.x}" y="{placed.y - height / 2:g}" width="{width}" height="{height}" rx="7"/>'
        f'<circle class="tree-verdict {verdict.replace(" ", "-")}" cx="{placed.x + 12}" cy="{placed.y:g}" r="4"/>'
        f'<text class="tree-name" x="{placed.x + 22}" y="{placed.y + 4:g}">{escape(record["name"])}</text> '
        f'<text class="tree-year" x="{placed.x + width - 6}" y="{placed.y + 4:g}" text-anchor="end">'
        f"{record['year']}</text></a>"
    )
