"""A search tree over one answer: nodes are steps of it, visited, valued and chosen by numbers that this module owns.

Nothing here samples: `upslope.rollout.search` writes steps, this module says where to go on and what was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Select = Literal["puct", "ucb", "depth-first"]
Backup = Literal["values", "mean"]


@dataclass(frozen=True)
class SearchRule:
    """How a tree is gone through.

    Fields:
        select: which child is gone to next: ``"puct"``, ``"ucb"``, or ``"depth-first"``, the newest that is not given up.
        actions: steps tried at each node.
        exploration: weight of what was rarely tried.
        discount: of values behind a step.
        backup: what a node is worth: by ``"values"``, its own gain and the mean of its children's worth by their visits, or by the
            ``"mean"`` of what answers through it earned.
    """

    select: Select = "puct"
    actions: int = 2
    exploration: float = 1.0
    discount: float = 1.0
    backup: Backup = "values"


@dataclass(eq=False)
class Node:
    """A step of an answer. The root is the problem before anything is written."""

    path: tuple[int, ...] = ()
    """Its place among its siblings, after those of the steps before it."""
    ids: tuple[int, ...] = ()
    parent: Node | None = None
    prior: float = 1.0
    value: float = 0.0
    """v, the value of the answer up to here by itself."""
    ended: bool = False
    valued: bool = False
    """Somebody has said what it is worth, before any answer through it was finished."""
    visits: int = 0
    quality: float = 0.0
    """Q, what it is worth with all that was found behind it."""
    earned: float = 0.0
    """Sum of what the answers through it earned, ..."""
    finished: int = 0
    """... and how many those were."""
    tries: int = 0
    children: list[Node] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return len(self.path)

    @property
    def known(self) -> bool:
        """Whether its quality says anything: a finished answer's does as soon as it is written."""
        return self.visits > 0 or self.valued or self.ended

    @property
    def gain(self) -> float:
        """r, by how much the step made the answer better."""
        return self.value - (self.parent.value if self.parent is not None else 0.0)

    @property
    def mean(self) -> float:
        """What answers through it earned on average; zero where none was finished."""
        return self.earned / self.finished if self.finished else 0.0

    def answer(self) -> tuple[int, ...]:
        """All ids from the beginning of the answer to the end of this step."""
        return (self.parent.answer() if self.parent is not None else ()) + self.ids

    def line(self) -> Iterator[Node]:
        """This node and those above it, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


def step_prior(logp: float, tokens: int, power: float = 1.25) -> float:
    """How likely a step was, longer ones made up for: exp(log p / tokens ** power)."""
    return math.exp(logp / max(tokens, 1) ** power)


class SearchTree:
    """The tree of one problem."""

    def __init__(self, rule: SearchRule):
        self.rule, self.top = rule, Node()
        self.root = self.top
        """Where search begins: the steps above it are decided."""
        self.solved = False

    def nodes(self) -> Iterator[Node]:
        """All but the top, parents before their children."""
        waiting = list(self.top.children)
        while waiting:
            node = waiting.pop(0)
            yield node
            waiting += node.children

    # -- going down ----------------------------------------------------------------------------------------------------

    def selected(self) -> Node | None:
        """The node to go on from; none where there is nothing left to try."""
        if self.rule.select == "depth-first":
            return None if self.solved else self._newest_open(self.root)
        node = self.root
        while node.children:
            node = self.chosen(node)
        return node

    def after(self, new: Sequence[Node], node: Node) -> Node | None:
        """Where to go when steps behind a node were written; ``new`` are those just written."""
        if self.rule.select != "depth-first":
            return self.chosen(node)
        latest = new[-1]
        return latest if latest.ended or self.is_open(latest) else self.selected()

    def wanted(self, node: Node) -> int:
        """Steps to write behind a node at once."""
        return 1 if self.rule.select == "depth-first" else self.rule.actions

    def chosen(self, node: Node) -> Node:
        """The child that the rule prefers; the likelier of two alike, then the first."""
        return max(node.children, key=lambda child: (self.preference(child), child.prior))

    def preference(self, child: Node) -> float:
        r"""By PUCT :math:`Q + w\,p\,\sqrt{N_{parent}} / (1 + N)`, by UCB :math:`Q + w\sqrt{\ln N_{parent} / N}`."""
        assert child.parent is not None
        weight, parent = self.rule.exploration, child.parent.visits
        if self.rule.select == "puct":
            return child.quality + weight * child.prior * math.sqrt(parent) / (1 + child.visits)
        if not child.visits:
            return math.inf
        return child.quality + weight * math.sqrt(math.log(max(parent, 1)) / child.visits)

    def is_open(self, node: Node) -> bool:
        """Whether depth first has something left to try at a node or below."""
        return not node.ended and (node.tries < self.rule.actions or any(map(self.is_open, node.children)))

    def _newest_open(self, node: Node) -> Node | None:
        if not self.is_open(node):
            return None
        below = next((child for child in reversed(node.children) if self.is_open(child)), None)
        return node if below is None else self._newest_open(below)

    # -- what was found ------------------------------------------------------------------------------------------------

    def add(self, parent: Node, ids: Sequence[int], prior: float, ended: bool) -> tuple[Node, bool]:
        """The step behind a node, and whether it is new: the same step twice is one node."""
        parent.tries += 1
        for child in parent.children:
            if child.ids == tuple(ids):
                return child, False
        child = Node((*parent.path, len(parent.children)), tuple(ids), parent, prior, ended=ended)
        parent.children.append(child)
        return child, True

    def value(self, node: Node, value: float, valued: bool = False) -> None:
        """Says what the answer up to a new node is worth by itself; by the mean only finished ones are worth anything."""
        node.value, node.valued = value, valued
        node.quality = node.gain if self.rule.backup == "values" else value if node.ended else 0.0

    def back_up(self, leaf: Node, earned: float, right: bool = False) -> None:
        r"""A finished answer: each of its steps is visited once more and valued anew.

        .. math::  Q = r + \gamma V, \qquad V = \frac{\sum_c \max(1, N_c)\,Q_c}{\sum_c \max(1, N_c)}, \qquad V(leaf) = 0

        Children of which nothing is known do not count.
        """
        self.solved |= right
        for node in leaf.line():
            node.visits += 1
            node.earned, node.finished = node.earned + earned, node.finished + 1
            node.quality = node.mean if self.rule.backup == "mean" else node.gain + self.rule.discount * self.behind(node)

    def behind(self, node: Node) -> float:
        """V, the mean of the known children's worth by their visits; zero at a leaf."""
        known = [(max(1, child.visits), child.quality) for child in node.children if child.known]
        return sum(visits * quality for visits, quality in known) / max(sum(visits for visits, _ in known), 1)

    def commit(self) -> None:
        """Decides for the child of the root that was visited most, of those the best; search goes on below it."""
        if self.root.children:
            self.root = max(self.root.children, key=lambda child: (child.visits, child.quality))

    def contests(self, most: int = 0) -> list[Node]:
        """Nodes with two known children of different quality, those furthest apart first; ``most`` of them (0: all)."""
        found = [node for node in (self.top, *self.nodes()) if self.apart(node) > 0]
        found.sort(key=self.apart, reverse=True)
        return found[:most] if most else found

    @staticmethod
    def apart(node: Node) -> float:
        """How far the best and the worst known child are from each other."""
        known = [child.quality for child in node.children if child.known]
        return max(known) - min(known) if known else 0.0
