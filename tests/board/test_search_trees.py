"""What the board's server says of the trees of a search."""

from __future__ import annotations

from typing import Any

from upslope.board.search_trees import DEEPEST, LONGEST, MOST_NODES, trees


def sample(path: Any, text: str = "", visits: Any = None, value: Any = None, **further: Any) -> dict[str, Any]:
    return {"response": text, "node": {"path": path, "visits": visits, "value": value, **further}, "advantage": 0.0}


def test_nodes_of_several_groups_are_one_tree_from_the_top():
    """The root has two children; the second was opened, and its first child won against its second."""
    won, lost = sample([1, 0], "ba", 4, 1.0), sample([1, 1], "bb", 1, 0.0)
    groups = [
        {"prompt": "p", "samples": [sample([0], "a", 3, 0.25), sample([1], "b", 6, 0.5)]},
        {"prompt": "p", "samples": [won | {"advantage": 0.8, "row": 7}, lost | {"advantage": -0.8}]},
        {"prompt": "q", "samples": [sample([2, 0], "c", 1, 0.0), {"response": "no node"}]},
    ]
    first, second = trees(groups)
    assert first["prompt"] == "p" and first["nodes_in_all"] == 5
    assert [(node["path"], node["text"], node["visits"], node["value"], node["side"]) for node in first["nodes"]] == [
        ([], "", None, None, None),
        ([0], "a", 3, 0.25, None),
        ([1], "b", 6, 0.5, None),
        ([1, 0], "ba", 4, 1.0, 1),
        ([1, 1], "bb", 1, 0.0, -1),
    ]
    assert first["nodes"][3]["row"] == 7
    assert [node["path"] for node in second["nodes"]] == [[], [2], [2, 0]], "those above are there, unknown"


def test_a_whole_tree_may_stand_in_a_note_of_the_group():
    whole = [{"path": [], "visits": 5, "value": 0.5}, {"path": [0], "text": "a", "visits": 5, "value": 0.5}]
    groups = [{"prompt": "p", "tree": whole, "samples": [sample([0, 0], "aa", 2, 1.0) | {"row": 1}]}]
    (found,) = trees(groups)
    assert [(node["path"], node["text"], node["visits"]) for node in found["nodes"]] == [
        ([], "", 5),
        ([0], "a", 5),
        ([0, 0], "aa", 2),
    ]


def test_trees_of_one_prompt_can_be_told_apart_by_name():
    groups = [{"prompt": "p", "samples": [sample([0], "a", tree=1), sample([0], "b", tree=2)]}]
    assert [[node["text"] for node in tree["nodes"]] for tree in trees(groups)] == [["", "a"], ["", "b"]]


def test_what_is_no_path_is_passed_over_and_much_is_cut():
    odd = [None, "x", [-1], [True], [0.5], [[0]], [0] * (DEEPEST + 1), [10**9], {"0": 1}]
    assert trees([{"prompt": "p", "samples": [sample(path) for path in odd]}]) == []
    many = [sample([place], "x" * 9000, 1e999, "y") for place in range(2 * MOST_NODES)]
    (found,) = trees([{"prompt": 3, "samples": many}])
    assert len(found["nodes"]) == MOST_NODES and found["nodes_in_all"] == 2 * MOST_NODES + 1 and found["prompt"] == ""
    assert len(found["nodes"][1]["text"]) == LONGEST and found["nodes"][1]["visits"] is found["nodes"][1]["value"] is None
