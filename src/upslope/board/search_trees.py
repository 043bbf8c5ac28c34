"""The trees of a search, for the page, from what recorded rows say of their nodes.

A row found by search has a note ``node``: ``{"path": [0, 2, 1], "visits": 5, "value": 0.4}``, the places of its node and of the
nodes above it among their siblings, how often the search went through it, and what it then was worth. Rows of one problem are of
one tree, unless ``node["tree"]`` names it. A group may have the whole tree in a note ``tree``: a list of such nodes, each with its
``text``.
"""

from __future__ import annotations

from upslope.board.run_summary import number
from upslope.plain_data import JsonDict

MOST_TREES, MOST_NODES, DEEPEST = 16, 400, 64
"""Trees of a step, nodes of one, and levels that are passed on."""
LONGEST = 400
"""Characters of a node's text."""

Path = tuple[int, ...]


def trees(groups: list[JsonDict]) -> list[JsonDict]:
    """Each tree with its nodes from the top, every node before those below it; what is above a node and unknown is there too."""
    found: dict[str, dict[Path, JsonDict]] = {}
    prompts: dict[str, str] = {}
    for group in groups:
        prompt = _text(group.get("prompt"))
        for table, said in _nodes(group):
            path = _path(table.get("path"))
            if path is None:
                continue
            name = str(table.get("tree", prompt))[:LONGEST]
            prompts.setdefault(name, prompt)
            own = found.setdefault(name, {})
            own[path] = own.get(path, {}) | {key: value for key, value in _node(table, said).items() if value not in (None, "")}
    return [{"prompt": prompts[name], **_tree(nodes)} for name, nodes in list(found.items())[:MOST_TREES]]


def _nodes(group: JsonDict) -> list[tuple[JsonDict, JsonDict]]:
    """What is said of nodes, and by which sample."""
    whole = group.get("tree")
    told = [(each, {}) for each in whole if isinstance(each, dict)] if isinstance(whole, list) else []
    return told + [(node, sample) for sample in group["samples"] if isinstance(node := sample.get("node"), dict)]


def _node(table: JsonDict, sample: JsonDict) -> JsonDict:
    advantage = number(sample.get("advantage"))
    return {
        "text": _text(table.get("text")) or _text(sample.get("response")),
        "visits": number(table.get("visits")),
        "value": number(table.get("value")),
        "side": None if not advantage else 1 if advantage > 0 else -1,
        "row": number(sample.get("row")),
    }


def _tree(nodes: dict[Path, JsonDict]) -> JsonDict:
    above = {path[:length] for path in nodes for length in range(len(path))}
    whole = sorted(above | set(nodes))
    empty = {"text": "", "visits": None, "value": None, "side": None, "row": None}
    return {
        "nodes": [{"path": list(path), **empty, **nodes.get(path, {})} for path in whole[:MOST_NODES]],
        "nodes_in_all": len(whole),
    }


def _path(value: object) -> Path | None:
    if not isinstance(value, list) or len(value) > DEEPEST:
        return None
    return tuple(value) if all(type(each) is int and 0 <= each < 10**6 for each in value) else None


def _text(value: object) -> str:
    return value[:LONGEST] if isinstance(value, str) else ""
