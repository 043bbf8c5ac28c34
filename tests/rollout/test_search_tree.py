"""Search trees by hand: visits, values and choices of small trees, the numbers worked out beside them."""

from __future__ import annotations

import math

import pytest

from upslope.rollout.search_tree import Node, SearchRule, SearchTree, step_prior


def grown(rule: SearchRule | None = None) -> tuple[SearchTree, dict[str, Node]]:
    """Five nodes below the top: a and b, behind a the leaves aa and ab, behind b the leaf ba. v(a) = 0.5, v(b) = 0.2."""
    tree = SearchTree(rule or SearchRule())
    found: dict[str, Node] = {}
    for name, prior, value, ended in (("a", 0.5, 0.5, False), ("b", 0.25, 0.2, False), ("aa", 0.9, 1.0, True),
                                      ("ab", 0.1, -1.0, True), ("ba", 1.0, -1.0, True)):  # fmt: skip
        parent = found[name[:-1]] if len(name) > 1 else tree.top
        found[name], new = tree.add(parent, [ord(letter) for letter in name[-1]], prior, ended)
        assert new
        tree.value(found[name], value)
    return tree, found


@pytest.mark.checks("oracle", "mcts-dpo", by="hand-worked numbers")
def test_values_of_five_nodes_by_hand():
    """r(a) = 0.5, r(b) = 0.2, r(aa) = 0.5, r(ab) = -1.5, r(ba) = -1.2.

    After an answer through aa: V(a) = (1 · 0.5 + 1 · -1.5) / 2 = -0.5, as an answer that nobody went to counts once; Q(a) = 0. Top:
    V = Q(a) = 0, as nothing is known of b. Through aa again: V(a) = (2 · 0.5 - 1.5) / 3 = -1/6, Q(a) = 1/3. Through ba:
    V(b) = -1.2, Q(b) = -1, V(top) = (2 · 1/3 - 1) / 3 = -1/9.
    """
    tree, node = grown()
    assert node["ab"].gain == -1.5 and node["ab"].quality == -1.5 and tree.behind(node["ab"]) == 0.0
    tree.back_up(node["aa"], 1.0)
    assert node["a"].quality == pytest.approx(0.0) and tree.top.quality == pytest.approx(0.0)
    tree.back_up(node["aa"], 1.0)
    assert node["a"].quality == pytest.approx(1 / 3)
    tree.back_up(node["ba"], 0.0)
    assert node["b"].quality == pytest.approx(-1.0) and tree.top.quality == pytest.approx(-1 / 9)
    assert node["ab"].quality == -1.5 and not node["ab"].visits


@pytest.mark.checks("oracle", "itool", by="hand-worked numbers")
def test_by_the_mean_a_node_is_worth_what_answers_through_it_earned():
    """Through aa twice with 1 and once through ab with 0.25: a is worth 2.25 / 3 = 0.75, the top with ba's 0.15 2.4 / 4 = 0.6."""
    tree, node = grown(SearchRule(backup="mean"))
    assert node["a"].quality == 0.0
    for name, earned in (("aa", 1.0), ("aa", 1.0), ("ab", 0.25), ("ba", 0.15)):
        tree.back_up(node[name], earned)
    assert node["a"].quality == pytest.approx(0.75) and tree.top.mean == pytest.approx(0.6)
    assert node["aa"].quality == 1.0 and node["ab"].quality == 0.25 and node["b"].quality == pytest.approx(0.15)


def test_visits_of_a_node_are_those_of_its_children():
    tree, node = grown()
    for name in ("aa", "ab", "ba", "aa"):
        tree.back_up(node[name], 0.0)
    for each in (tree.top, *tree.nodes()):
        assert not each.children or each.visits == sum(child.visits for child in each.children)
    assert tree.top.visits == 4 and [each.visits for each in tree.nodes()] == [3, 1, 2, 1, 1]


def test_puct_by_hand():
    """After one visit of a: a is 0 + 0.5 · 1 / 2 = 0.25, b is 0.2 + 0.25 · 1 / 1 = 0.45; b is chosen. With w = 0 it is by Q alone.
    Behind a, visited once: aa is 0.5 + 0.9 / 2 = 0.95, ab is -1.5 + 0.1 = -1.4."""
    tree, node = grown()
    tree.back_up(node["aa"], 1.0)
    assert tree.preference(node["a"]) == pytest.approx(0.25) and tree.preference(node["b"]) == pytest.approx(0.45)
    assert tree.preference(node["aa"]) == pytest.approx(0.95) and tree.preference(node["ab"]) == pytest.approx(-1.4)
    assert tree.chosen(tree.top) is node["b"] and tree.selected() is node["ba"]
    greedy, same = grown(SearchRule(exploration=0.0))
    greedy.back_up(same["aa"], 1.0)
    greedy.back_up(same["aa"], 1.0)
    assert greedy.selected() is same["aa"]


def test_ucb_by_hand():
    """Who was never visited comes first. Then with N = 3: a (2 visits) has 1/3 + sqrt(ln 3 / 2), b (1 visit) -1 + sqrt(ln 3)."""
    tree, node = grown(SearchRule(select="ucb"))
    tree.back_up(node["aa"], 1.0)
    assert tree.chosen(tree.top) is node["b"]
    tree.back_up(node["aa"], 1.0)
    tree.back_up(node["ba"], 0.0)
    assert tree.preference(node["a"]) == pytest.approx(1 / 3 + math.sqrt(math.log(3) / 2))
    assert tree.preference(node["b"]) == pytest.approx(-1 + math.sqrt(math.log(3)))
    assert tree.selected() is node["ab"]


def test_before_any_visit_the_likelier_of_two_alike_is_chosen():
    tree = SearchTree(SearchRule())
    for ids, prior in ((1, 0.2), (2, 0.7), (3, 0.7)):
        tree.add(tree.top, [ids], prior, True)
    assert tree.chosen(tree.top).ids == (2,)


def test_the_prior_makes_up_for_length():
    assert step_prior(-2.0, 1) == pytest.approx(math.exp(-2))
    assert step_prior(-4.0, 16) == pytest.approx(math.exp(-4 / 32))  # 16 ** 1.25 = 32


def test_the_same_step_twice_is_one_node():
    tree = SearchTree(SearchRule())
    first, _ = tree.add(tree.top, [1, 2], 0.5, False)
    again, new = tree.add(tree.top, [1, 2], 0.5, False)
    assert again is first and not new and tree.top.tries == 2 and len(tree.top.children) == 1
    assert tree.contests() == []


def test_contests_are_of_known_children_that_differ_and_the_clearest_come_first():
    """Finished answers are known: aa and ab (0.5, -1.5) are 2 apart. a and b are once both were visited: 1/3 and -1, 4/3 apart."""
    tree, node = grown()
    tree.back_up(node["aa"], 1.0)
    tree.back_up(node["aa"], 1.0)
    assert not node["b"].known and tree.contests() == [node["a"]]
    tree.back_up(node["ba"], 0.0)
    assert tree.contests() == [node["a"], tree.top] and tree.contests(1) == [node["a"]]
    other, same = grown()
    other.value(same["b"], 0.2, valued=True)
    other.value(same["a"], 0.5, valued=True)
    assert other.contests() == [same["a"], other.top], "what the policy has judged is known before it was visited"


def test_a_decision_is_for_the_most_visited_child_and_search_goes_on_below_it():
    tree, node = grown()
    tree.back_up(node["ba"], 0.0)
    tree.back_up(node["ba"], 0.0)
    tree.back_up(node["aa"], 1.0)
    tree.commit()
    assert tree.root is node["b"] and tree.selected() is node["ba"]
    tree.commit()
    tree.commit()
    assert tree.root is node["ba"]


def test_depth_first_gives_up_a_step_when_all_behind_it_has_failed_and_ends_with_a_success():
    tree = SearchTree(SearchRule(select="depth-first", actions=2))
    assert tree.selected() is tree.top and tree.wanted(tree.top) == 1
    one, _ = tree.add(tree.top, [1], 1.0, False)
    assert tree.after([one], tree.top) is one
    for ids in (5, 6):
        leaf, _ = tree.add(one, [ids], 1.0, True)
        assert tree.after([leaf], one) is leaf
        tree.back_up(leaf, 0.0)
    assert not tree.is_open(one) and tree.selected() is tree.top
    two, _ = tree.add(tree.top, [2], 1.0, False)
    assert tree.after([two], tree.top) is two and not tree.solved
    right, _ = tree.add(two, [7], 1.0, True)
    tree.back_up(right, 1.0, right=True)
    assert tree.selected() is None and tree.solved
    assert [(each.path, each.visits) for each in tree.nodes()] == [((0,), 2), ((1,), 1), ((0, 0), 1), ((0, 1), 1), ((1, 0), 1)]
    assert right.answer() == (2, 7)


def test_depth_first_passes_over_a_step_that_it_has_given_up_before():
    """Written again, the failed step is no new one: the next open node is gone to, or none."""
    tree = SearchTree(SearchRule(select="depth-first", actions=2))
    one, _ = tree.add(tree.top, [1], 1.0, False)
    for ids in (5, 6):
        tree.back_up(tree.add(one, [ids], 1.0, True)[0], 0.0)
    again, new = tree.add(tree.top, [1], 1.0, False)
    assert again is one and not new and tree.after([again], tree.top) is None
