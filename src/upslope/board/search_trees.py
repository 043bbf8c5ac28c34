"""The trees of a search, for the page, from what recorded rows say of their nodes.

A row found by search has a note ``search``: ``{"tree": 0, "path": [0, 2, 1], "visits": 5, "value": 0.4}``: a number for its tree,
the places of its node and of those above it among their siblings, how often the search went through it, and what it found it worth
(nothing where it is not known). A recorded step has in ``trees`` all nodes of the trees of its groups, each with its ``text``.
"""

from __future__ import annotations

from upslope.board.run_summary import number
from upslope.plain_data import JsonDict

MOST_TREES, MOST_NODES, DEEPEST = 16, 400, 64
"""Trees of a step, nodes of one, and levels that are passed on."""
LONGEST = 400
"""Characters of a node's text."""

Path = tuple[int, ...]


def trees(record: JsonDict) -> list[JsonDict]:
    """Each tree with its nodes from the top, every node before those below it; what is above a node and unknown is there too."""
    found: dict[tuple[str, str], dict[Path, JsonDict]] = {}
    for prompt, table, sample in _told(record):
        path = _path(table.get("path"))
        if path is not None:
            own = found.setdefault((prompt, str(table.get("tree"))[:LONGEST]), {})
            own[path] = own.get(path, {}) | {key: value for key, value in _node(table, sample).items() if value not in (None, "")}
    return [{"prompt": prompt, **_tree(nodes)} for (prompt, _), nodes in list(found.items())[:MOST_TREES]]


def _told(record: JsonDict) -> list[tuple[str, JsonDict, JsonDict]]:
    """What is said of nodes: the prompt of its tree, the node, and the sample that says it, if one does."""
    found: list[tuple[str, JsonDict, JsonDict]] = []
    for tree in _tables(record.get("trees")):
        found += [(_text(tree.get("prompt")), {"tree": tree.get("tree"), **node}, {}) for node in _tables(tree.get("nodes"))]
    for group in _tables(record.get("groups")):
        for sample in _tables(group.get("samples")):
            if isinstance(node := sample.get("search"), dict):
                found.append((_text(group.get("prompt")), node, sample))
    return found


def _tables(value: object) -> list[JsonDict]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _node(table: JsonDict, sample: JsonDict) -> JsonDict:
    advantage = number(sample.get("advantage"))
    return {
        "text": _whole(table.get("text")) or _whole(sample.get("response")),
        "visits": number(table.get("visits")),
        "value": number(table.get("value")),
        "side": None if not advantage else 1 if advantage > 0 else -1,
        "row": number(sample.get("row")),
    }


def _tree(nodes: dict[Path, JsonDict]) -> JsonDict:
    above = {path[:length] for path in nodes for length in range(len(path))}
    whole = sorted(above | set(nodes))
    empty = {"text": "", "visits": None, "value": None, "side": None, "row": None}
    shown = [{"path": list(path), **empty, **nodes.get(path, {}), "text": _step(nodes, path)} for path in whole[:MOST_NODES]]
    return {"nodes": shown, "nodes_in_all": len(whole)}


def _step(nodes: dict[Path, JsonDict], path: Path) -> str:
    """What a node adds to the text of the one above it, which an answer as far as this node begins with."""
    said, above = (nodes.get(place, {}).get("text", "") for place in (path, path[:-1]))
    return _text(said.removeprefix(above) if len(said) > len(above) else said)


def _whole(value: object) -> str:
    return value if isinstance(value, str) else ""


def _path(value: object) -> Path | None:
    if not isinstance(value, list) or len(value) > DEEPEST:
        return None
    return tuple(value) if all(type(each) is int and 0 <= each < 10**6 for each in value) else None


def _text(value: object) -> str:
    return value[:LONGEST] if isinstance(value, str) else ""
