"""Search: answers are written step by step in a tree, and the steps that follow the same beginning become contests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

from upslope.errors import MethodError, UserError
from upslope.objective.base import RolloutPlan
from upslope.plain_data import JsonDict
from upslope.rollout.engine_report import NAMES
from upslope.rollout.pool import Fulfilled
from upslope.rollout.search_rows import SearchCounts, SearchRecord
from upslope.rollout.search_tree import Backup, Node, SearchRule, SearchTree, Select, step_prior
from upslope.rollout.self_evaluation import chance_of_right
from upslope.rollout.text import TextRollout
from upslope.rollout.turns import sample_turns
from upslope.tasks.text import Problem, Scores
from upslope.tasks.turns import Turn, TurnNumbers
from upslope.types import Assignment, Metrics, Trajectories

ROOT_SHARE = 4
"""How many times as many answers are searched for from the beginning as from each later step (MCTS-DPO)."""
SHALLOW = 3
"""Depth from which on a self-evaluation counts for less (MCTS-DPO)."""


@dataclass(frozen=True)
class Search(RolloutPlan):
    r"""Answers are searched for in a tree of steps; the steps that follow the same beginning are a group (MCTS-DPO).

    A step ends with the task's separator (mostly a line), or after an even share of the token limit; at the last depth the answer
    is written to its end. Every step is a row whose prompt has all that stands before it, so only what differs between siblings is
    learned, and no beginning is sampled twice. A tree grows until ``--samples-per-task`` answers were finished in it; going through
    what is written again costs nothing. All trees grow together, in one batch for each round of steps.

    ``signal["value"]`` is what a step is worth, NaN where nothing was found out, ``signal["visits"]`` the answers that went through
    it. The reward of a row is the mean of what those earned.

    Fields:
        select: which step is gone on from: ``"puct"``, ``"ucb"``, or ``"depth-first"``: one step after another, back to the last
            beginning that has tries left when an answer is wrong, until one is right.
        actions: steps tried behind each beginning. More makes contests wider and trees larger.
        depth: steps an answer has at most. 1 compares whole answers.
        visits: how often a tree is gone through. More makes clearer which steps are worth it.
        step_tokens: the most tokens of a step; 0 is the token limit divided by the depth.
        exploration: larger visits what was rarely tried, or was likely to the policy, in place of what was good.
        discount: of what lies behind a step.
        backup: what a step is worth: ``"values"`` adds its own gain to what was found behind it, by visits; ``"mean"`` is what
            answers through it earned on average.
        outcome: what a finished answer counts: its ``"reward"``, or 1 where it is ``"correct"`` and 0 otherwise. Under ``"values"``
            it is taken from -1 to 1.
        evaluate: who values a step before an answer is finished: the ``"task"``, which scores finished answers only, or also the
            ``"policy"``, asked whether the answer is right so far, with the solution before it where one is known.
        commit: after some answers the best first step is decided for, and search goes on behind it.
        failed_only: one answer is sampled first, and only problems that it gets wrong are searched (iTool's deficiency set).
        contests: the most contests of a tree, those of clearest difference; 0 is all.
    """

    provides: ClassVar[frozenset[str]] = TextRollout.provides | {"signal.value", "signal.visits"}
    scored_last: ClassVar[bool] = False
    ranges: ClassVar = {
        "actions": "[1, inf)", "depth": "[1, inf)", "visits": "[1, inf)", "step_tokens": "[0, inf)", "exploration": "[0, inf)",
        "discount": "[0, 1]", "contests": "[0, inf)",
    }  # fmt: skip

    select: Select = "puct"
    actions: int = 2
    depth: int = 3
    visits: int = 64
    step_tokens: int = 0
    exploration: float = 1.0
    discount: float = 1.0
    backup: Backup = "values"
    outcome: Literal["reward", "correct"] = "reward"
    evaluate: Literal["task", "policy"] = "task"
    commit: bool = True
    failed_only: bool = False
    contests: int = 8

    def __post_init__(self) -> None:
        if self.evaluate == "policy" and self.backup == "mean":
            raise MethodError("Search.evaluate is 'policy' and Search.backup 'mean', which counts finished answers alone. Take "
                              "backup=values, or evaluate=task.")  # fmt: skip

    @property
    def rule(self) -> SearchRule:
        """What a tree needs to know of it."""
        return SearchRule(self.select, self.actions, self.exploration, self.discount, self.backup)

    def build(self, task: object, policy: object, **sizes: Any) -> SearchRollout:
        return SearchRollout(task, policy, plan=self, **sizes)


class Place(NamedTuple):
    """A node of the tree of a problem."""

    tree: int
    node: Node


class SearchRollout(TextRollout):
    """Searches for answers to a number of problems. Nothing is carried from step to step."""

    provides = Search.provides

    def __init__(self, *arguments: Any, plan: Search, **sizes: Any):
        super().__init__(*arguments, **sizes)
        self.plan = plan
        self.record = SearchRecord()
        """Of the search under way, ..."""
        self.counts = SearchCounts()
        """... and what those took whose rows were taken since the last `metrics`."""

    def fulfilled(self, assignment: Assignment) -> Fulfilled:
        found = super().fulfilled(assignment)
        return replace(found, told=found.told | dataclasses.asdict(self.record.counts))

    def heard(self, told: JsonDict) -> None:
        super().heard(told)
        counts = {name: value for name, value in told.items() if name not in NAMES}
        self.counts = self.counts.with_those_of(SearchCounts(**counts))

    def fulfil(self, assignment: Assignment) -> Trajectories:
        """Every step that was written, in the order in which they were."""
        problems = self.problems_of(assignment)
        if self.sampling_of(assignment) != self.sampling:
            raise UserError("a search writes all its answers alike, and this curriculum wants another token limit or another "
                            "temperature; take the curriculum or rollout=Search away.")  # fmt: skip
        self.record = SearchRecord()
        trees = [SearchTree(self.plan.rule) for _ in problems]
        share = f".{assignment.share}" if assignment.share else ""
        numbers = TurnNumbers(assignment.step, f"rollout.{assignment.attempt}{share}")
        each = assignment.samples
        live = self._failed(problems, trees, numbers) if self.plan.failed_only else list(range(len(problems)))
        for visit in range(1, self.plan.visits + 1):
            live = self._visit(problems, trees, [tree for tree in live if self._goes_on(trees[tree], each[tree])], numbers)
            for tree in live if self._decides(visit) else ():
                trees[tree].commit()
        return self.record.rows(trees, assignment.first_group, self.plan.contests)

    def _goes_on(self, tree: SearchTree, answers: int) -> bool:
        """Whether there is something to visit that was written, or may be."""
        node = tree.selected()
        return node is not None and (node.ended or self.record.finished[tree] < answers)

    def _decides(self, visits: int) -> bool:
        """Whether the next step is decided for after so many visits: the first has four times as many as the others."""
        if not self.plan.commit or self.plan.select == "depth-first":
            return False
        later = max(1, self.plan.visits // (ROOT_SHARE + self.plan.depth - 1))
        first = max(1, self.plan.visits - later * (self.plan.depth - 1))
        return visits >= first and (visits - first) % later == 0

    def _failed(self, problems: Sequence[Problem], trees: Sequence[SearchTree], numbers: TurnNumbers) -> list[int]:
        """The problems that a first answer gets wrong. It stands in no tree: nobody is compared with it."""
        apart = [SearchTree(replace(self.plan.rule, actions=1)) for _ in trees]
        found = self._expand(problems, apart, [Place(tree, each.top) for tree, each in enumerate(apart)], numbers, whole=True)
        for (leaf,) in found.values():
            leaf.path = ()
        return [place.tree for place, (leaf,) in found.items() if not self.record.right[leaf]]

    def _visit(self, problems: Sequence[Problem], trees: Sequence[SearchTree], live: list[int], numbers: TurnNumbers) -> list[int]:
        """Goes down each of these trees to the end of an answer, which is written as far as it is not yet; the trees."""
        at = {tree: trees[tree].selected() for tree in live}
        while waiting := [Place(tree, node) for tree, node in at.items() if node is not None and not node.ended]:
            last = [place for place in waiting if place.node.depth + 1 >= self.plan.depth]
            for places in (last, [place for place in waiting if place not in last]):
                leaves = self._expand(problems, trees, places, numbers, whole=places is last) if places else {}
                for place, new in leaves.items():
                    at[place.tree] = trees[place.tree].after(new, place.node)
        for tree, leaf in at.items():
            if leaf is not None:
                trees[tree].back_up(leaf, self._outcome(leaf), self.record.right[leaf])
        return live

    def _expand(
        self, problems: Sequence[Problem], trees: Sequence[SearchTree], places: list[Place], numbers: TurnNumbers, whole: bool
    ) -> dict[Place, list[Node]]:
        """Writes the steps behind these nodes, one batch for the engine; what each was followed by.

        Args:
            whole: they go on to the end of the answer.
        """
        turns = [self._turn(problems[tree], node, trees[tree].wanted(node), whole) for tree, node in places]
        rows = sample_turns(self, turns, numbers)
        owners = [place for place, turn in zip(places, turns, strict=True) for _ in range(turn.samples)]
        found: dict[Place, list[Node]] = {place: [] for place in places}
        new: dict[int, tuple[int, Node]] = {}
        for row, (place, (said, logp)) in enumerate(zip(owners, _said(rows), strict=True)):
            ended = said[-1] in self.policy.stop_ids or len(place.node.answer()) + len(said) >= self.sampling.max_tokens
            node, is_new = trees[place.tree].add(place.node, said, step_prior(logp, len(said)), ended)
            found[place].append(node)
            new |= {row: (place.tree, node)} if is_new else {}
        self.record.add(rows, new)
        self._value(problems, trees, list(new.values()))
        self.record.count([node for place in places for node in found[place] if node.ended])
        return found

    def _turn(self, problem: Problem, node: Node, samples: int, whole: bool) -> Turn:
        limit = 0 if whole else self.plan.step_tokens or -(-self.sampling.max_tokens // self.plan.depth)
        until = "" if whole else self.task.separator
        return Turn(problem.model_input, problem, samples, begun=node.answer(), scorer=_unscored, limit=limit, until=until)

    def _value(self, problems: Sequence[Problem], trees: Sequence[SearchTree], new: Sequence[tuple[int, Node]]) -> None:
        """What the new steps are worth: the finished ones are scored, and all are judged by the policy, if it is asked."""
        texts = self.policy.decode_all([list(node.answer()) for _, node in new])
        if ended := [(problems[tree], text, node) for (tree, node), text in zip(new, texts, strict=True) if node.ended]:
            asked, said, leaves = zip(*ended, strict=True)
            self.record.score(leaves, self.task.score(asked, said))
            for tree, node in new:
                self.record.finished[trees[tree]] += node.ended
        asks = self.plan.evaluate == "policy"
        own = chance_of_right(self, [problems[tree] for tree, _ in new], texts) if asks else [0.0] * len(new)
        for (tree, node), chance in zip(new, own, strict=True):
            value = chance / max(node.depth - SHALLOW, 1)
            trees[tree].value(node, value + (self._worth(node) if node.ended else 0.0), asks)

    def _worth(self, leaf: Node) -> float:
        """Of a finished answer by itself."""
        return self._outcome(leaf) if self.plan.backup == "mean" else 2 * self._outcome(leaf) - 1

    def _outcome(self, leaf: Node) -> float:
        return self.record.reward[leaf] if self.plan.outcome == "reward" else float(self.record.right[leaf])

    def metrics(self) -> Metrics:
        """Of what was sampled since the last call, and of the answers that were finished in it."""
        counts, self.counts = self.counts, SearchCounts()
        return super().metrics() | counts.metrics()


def _said(rows: Trajectories) -> list[tuple[list[int], float]]:
    """The ids of each row, and how likely they were."""
    assert rows.action is not None
    logp = (rows.behavior.logp * rows.sampled).sum(1).tolist()
    lengths = rows.lengths().long().tolist()
    return [(ids[:length], each) for ids, length, each in zip(rows.action.tolist(), lengths, logp, strict=True)]


def _unscored(problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
    """Steps are no answers; those that end one are scored when it is known that they do."""
    return Scores([0.0] * len(responses), [False] * len(responses))
