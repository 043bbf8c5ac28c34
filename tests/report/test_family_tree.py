"""The family tree: one node for each method, one edge for each parent, nothing over anything else."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

from upslope.methods import catalogue
from upslope.report.catalogue import catalogue_records, record
from upslope.report.family_tree import LETTERS, NODE, changed_text, family_tree_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn() -> ElementTree.Element:
    return ElementTree.fromstring(family_tree_svg(catalogue_records()["methods"], lambda name: f"methods/{name}.html"))


def test_every_method_stands_once_beside_its_parent() -> None:
    places = {}
    for node in drawn().iter(f"{SVG}a"):
        name = node.attrib["href"].removeprefix("methods/").removesuffix(".html")
        box = node.find(f"{SVG}rect")
        assert box is not None and name not in places
        places[name] = (float(box.attrib["x"]), float(box.attrib["y"]))
    assert places.keys() == catalogue().keys()
    assert len(set(places.values())) == len(places)
    for name, method in catalogue().items():
        if method.parent:
            assert places[name][0] > places[method.parent][0] and places[name][1] >= places[method.parent][1]
    columns: dict[float, list[float]] = {}
    for x, y in places.values():
        columns.setdefault(x, []).append(y)
    for column in columns.values():
        column.sort()
        assert all(low + NODE[1] <= high for low, high in itertools.pairwise(column))


def test_an_edge_says_what_it_changes() -> None:
    texts = [each.text for each in drawn().iter(f"{SVG}text") if each.attrib["class"] == "tree-change"]
    assert len(texts) == sum(bool(method.parent) for method in catalogue().values())
    assert changed_text(record(catalogue()["dhpo"])["slots"]) == "ratio, surrogate +1"
    assert all(len(text or "") <= LETTERS for text in texts)


def test_names_are_escaped_and_a_missing_parent_is_a_root() -> None:
    odd = record(catalogue()["grpo"]) | {"name": "<b>&", "parent": "gone"}
    made = family_tree_svg([odd], lambda name: "x.html")
    assert "<b>" not in made and "&lt;b&gt;&amp;" in made and not re.search("tree-edge", made)
