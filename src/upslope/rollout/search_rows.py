"""What a search has written: its steps as rows, and its trees as columns of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from upslope.plain_data import JsonDict
from upslope.rollout.search_tree import Node, SearchTree
from upslope.rollout.text_rows import join_text
from upslope.tasks.text import Scores
from upslope.types import Ended, Metrics, Trajectories


@dataclass
class SearchCounts:
    """What a step's searches took, and what their finished answers earned."""

    tokens: float = 0.0
    steps: int = 0
    reward: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    trees: int = 0
    contests: int = 0
    undecided: int = 0
    """Trees without a contest."""

    def with_those_of(self, other: SearchCounts) -> SearchCounts:
        """Of both searches together."""
        return SearchCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def metrics(self) -> Metrics:
        """``reward`` and ``length`` are of finished answers, not of steps; ``contests`` is how many a tree had, and
        ``constant_groups`` the share of trees that had none."""
        if not self.steps:
            return {}
        found = {"tokens": self.tokens, "samples": float(self.steps), "contests": self.contests / max(self.trees, 1)}
        found |= {"constant_groups": self.undecided / max(self.trees, 1)}
        if self.reward:
            found |= {"reward": sum(self.reward) / len(self.reward), "finished_answers": float(len(self.reward))}
            found |= {"length": sum(self.lengths) / len(self.lengths), "longest": float(max(self.lengths))}
        return found


@dataclass
class SearchRecord:
    """The different steps of a batch of searches, as they were written."""

    counts: SearchCounts = field(default_factory=SearchCounts)
    pieces: list[Trajectories] = field(default_factory=list)
    nodes: list[tuple[int, Node]] = field(default_factory=list)
    """The tree and the node of each row."""
    reward: dict[Node, float] = field(default_factory=dict)
    """What the finished answers earned, by their last step, ..."""
    right: dict[Node, bool] = field(default_factory=dict)
    """... whether they are right, ..."""
    components: dict[Node, dict[str, float]] = field(default_factory=dict)
    """... and the parts of what they earned."""
    finished: Counter[SearchTree] = field(default_factory=Counter)
    """How many different ones each tree has."""

    def add(self, rows: Trajectories, new: dict[int, tuple[int, Node]]) -> None:
        """Rows that were sampled; ``new`` are those of them that no other step was equal to, with their tree and node."""
        self.counts.tokens += float(rows.sampled.sum())
        self.counts.steps += rows.rows
        self.nodes += new.values()
        chosen = torch.zeros(rows.rows, dtype=torch.bool, device=rows.sampled.device)
        chosen[list(new)] = True
        if new:
            self.pieces.append(rows.keep_rows(chosen))

    def score(self, nodes: Sequence[Node], scores: Scores) -> None:
        """What finished answers are worth."""
        for number, node in enumerate(nodes):
            self.reward[node], self.right[node] = scores.reward[number], scores.correct[number]
            self.components[node] = {name: values[number] for name, values in scores.components.items() if name != "task"}

    def count(self, leaves: Sequence[Node]) -> None:
        """Answers that were finished, as often as they were sampled: one that is likely comes up more than once."""
        self.counts.reward += [self.reward[leaf] for leaf in leaves]
        self.counts.lengths += [len(leaf.answer()) for leaf in leaves]

    def rows(self, trees: Sequence[SearchTree], first_group: int, most: int) -> Trajectories:
        """Every step as a row of its trees' contests, ``most`` of each tree (0: all)."""
        rows = join_text(self.pieces)
        contests = [tree.contests(most) for tree in trees]
        self.counts.trees += len(trees)
        self.counts.contests += sum(map(len, contests))
        self.counts.undecided += sum(not found for found in contests)
        nodes = [node for _, node in self.nodes]
        reward = self._column([node.mean if node.finished else self.reward.get(node, 0.0) for node in nodes], rows.reward)
        names = dict.fromkeys(name for parts in self.components.values() for name in parts)
        parts = {name: [self.components.get(node, {}).get(name, math.nan) for node in nodes] for name in names}
        label = {name: column for name, column in rows.label.items() if name != "source"}  # they are what the step began with
        return rows.replace(
            reward=reward,
            components={"task": reward} | {name: self._column(values, reward) for name, values in parts.items()},
            group=torch.tensor(self._groups(contests), device=rows.group.device) + first_group,
            label=label,
            signal={
                "value": self._column([node.quality if node.known else math.nan for node in nodes], reward),
                "visits": self._column([float(node.visits) for node in nodes], reward),
            },
            ended=self._ends(rows, nodes),
            info=[note | self._told(row) for row, note in enumerate(rows.info)],
        )

    def _groups(self, contests: Sequence[Sequence[Node]]) -> list[int]:
        """The number of each row's contest; a row that takes part in none has a number of its own."""
        number = {node: place for place, node in enumerate(node for found in contests for node in found)}
        alone = iter(range(len(number), len(number) + len(self.nodes)))
        return [number[node.parent] if node.parent in number else next(alone) for _, node in self.nodes]

    def _told(self, row: int) -> JsonDict:
        """What people want to know of a step: where it stands in the tree of its problem, and what was found there."""
        tree, node = self.nodes[row]
        value = float(f"{node.quality:.4g}") if node.known else None
        told: JsonDict = {"tree": tree, "path": list(node.path), "visits": node.visits, "value": value}
        place = {"search": told} if node.path else {}  # a first answer stands in no tree
        return place | {"reward": self.reward.get(node)} | ({} if node.ended else {"finish": "paused"})

    @staticmethod
    def _column(values: Sequence[float], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device)

    @staticmethod
    def _ends(rows: Trajectories, nodes: Sequence[Node]) -> Tensor:
        """An answer goes on behind a step that does not end it."""
        assert rows.ended is not None
        goes_on = torch.tensor([not node.ended for node in nodes], device=rows.ended.device).unsqueeze(1)
        return torch.where(goes_on & (rows.ended != 0), int(Ended.PAUSED), rows.ended).to(torch.int8)
