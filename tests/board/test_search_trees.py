"""What the board's server says of the trees of a search."""

from __future__ import annotations

from typing import Any

from upslope.board.search_trees import DEEPEST, LONGEST, MOST_NODES, trees


def node(path: Any, visits: Any = None, value: Any = None, **further: Any) -> dict[str, Any]:
    return {"tree": 0, "path": path, "visits": visits, "value": value, **further}


def sample(
    path: Any, text: str = "", visits: Any = None, value: Any = None, advantage: float = 0.0, **further: Any
) -> dict[str, Any]:
    return {"response": text, "search": node(path, visits, value, **further), "advantage": advantage}


def test_nodes_of_several_groups_are_one_tree_from_the_top():
    """The root has two children; the second was opened, and its first child won against its second."""
    opened = [sample([1, 0], "b, a", 4, 1.0, advantage=0.8) | {"row": 7}, sample([1, 1], "bb", 1, 0.0, advantage=-0.8)]
    groups = [
        {"prompt": "p", "samples": [sample([0], "a", 3, 0.25), sample([1], "b", 6, 0.5)]},
        {"prompt": "p", "samples": opened},
        {"prompt": "q", "samples": [sample([2, 0], "c", 1, 0.0), {"response": "no node"}]},
    ]
    first, second = trees({"groups": groups})
    assert first["prompt"] == "p" and first["nodes_in_all"] == 5
    assert [(each["path"], each["text"], each["visits"], each["value"], each["side"]) for each in first["nodes"]] == [
        ([], "", None, None, None),
        ([0], "a", 3, 0.25, None),
        ([1], "b", 6, 0.5, None),
        ([1, 0], ", a", 4, 1.0, 1),
        ([1, 1], "b", 1, 0.0, -1),
    ]
    assert first["nodes"][3]["row"] == 7
    assert [each["path"] for each in second["nodes"]] == [[], [2], [2, 0]], "those above are there, unknown"


def test_nodes_without_a_recorded_row_come_from_the_list_of_the_whole_tree():
    whole = [node([0], 5, 0.5, text="a"), node([1], 2, None, text="b"), node([0, 0], 2, 1.0, text="aa")]
    record = {
        "trees": [{"prompt": "p", "tree": 0, "nodes": whole}],
        "groups": [{"prompt": "p", "samples": [sample([0, 0], "aa", 2, 1.0, advantage=1.0)]}],
    }
    (found,) = trees(record)
    told = [(each["path"], each["text"], each["visits"], each["value"], each["side"]) for each in found["nodes"]]
    assert told == [([], "", None, None, None), ([0], "a", 5, 0.5, None), ([0, 0], "a", 2, 1.0, 1), ([1], "b", 2, None, None)]


def test_a_node_shows_what_it_adds_to_the_one_above_it():
    """However much stands before it: texts are cut behind that."""
    long = "x" * 5000
    nodes = [node([0], text=long), node([0, 0], text=f"{long}yes"), node([0, 1], text="other"), node([1, 0], text="ab")]
    (found,) = trees({"trees": [{"prompt": "p", "tree": 0, "nodes": nodes}]})
    assert [each["text"] for each in found["nodes"]] == ["", long[:LONGEST], "yes", "other", "", "ab"]


def test_trees_of_one_prompt_are_told_apart_by_their_number():
    groups = [{"prompt": "p", "samples": [sample([0], "a"), sample([0], "b", tree=1)]}]
    assert [[each["text"] for each in tree["nodes"]] for tree in trees({"groups": groups})] == [["", "a"], ["", "b"]]


def test_what_is_no_path_is_passed_over_and_much_is_cut():
    odd = [None, "x", [-1], [True], [0.5], [[0]], [0] * (DEEPEST + 1), [10**9], {"0": 1}]
    assert trees({"groups": [{"prompt": "p", "samples": [sample(path) for path in odd]}]}) == []
    many = [sample([place], "x" * 9000, 1e999, "y") for place in range(2 * MOST_NODES)]
    (found,) = trees({"groups": [{"prompt": 3, "samples": many}], "trees": [{"nodes": [3, None]}, "x"]})
    assert len(found["nodes"]) == MOST_NODES and found["nodes_in_all"] == 2 * MOST_NODES + 1 and found["prompt"] == ""
    assert len(found["nodes"][1]["text"]) == LONGEST and found["nodes"][1]["visits"] is found["nodes"][1]["value"] is None
