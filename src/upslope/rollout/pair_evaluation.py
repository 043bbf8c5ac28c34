"""How often a policy prefers the chosen answer of held-out pairs, or wanted answers to unwanted ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.policies.language_model import LanguageModel
from upslope.rollout.evaluation import EVALUATION_SEED
from upslope.rollout.pairs import CHOSEN, REJECTED, contests, judged_rows
from upslope.rollout.text_rows import written_rows
from upslope.runtime.seeding import numpy_generator
from upslope.runtime.statistics import share_interval
from upslope.tasks.text import Problem, Split, TextTask
from upslope.types import Trajectories

PAIRS_AT_ONCE = 64


@dataclass(frozen=True)
class PairEvaluation:
    """Whether the policy prefers the chosen side of each contest: 1 where it does, a half where both sides are as likely."""

    wins: list[float]

    @property
    def preferred(self) -> float:
        """Share of the contests whose chosen side is the likelier one."""
        return sum(self.wins) / len(self.wins)

    def interval(self) -> tuple[float, float]:
        """95% interval of that share."""
        return share_interval(self.wins)


def win(one: float, other: float) -> float:
    """1 if the first is the larger, a half if they are equal."""
    return 0.5 if one == other else float(one > other)


def evaluate_pairs(
    task: TextTask,
    policy: LanguageModel,
    *,
    problems: int,
    split: Split = "test",
    seed: int = EVALUATION_SEED,
    progress: Callable[[int, int], None] | None = None,
) -> PairEvaluation:
    """The policy's log-likelihoods of the two sides of held-out pairs; answers count as a whole, by the sum over their tokens."""
    chosen = held_out_pairs(task, problems, split, seed)
    if any(problem.wanted is not None for problem in chosen):
        return _evaluate_labels(policy, [problem for problem in chosen if problem.wanted is not None])
    sides: dict[int, list[float]] = {CHOSEN: [], REJECTED: []}
    for begin in range(0, len(chosen), PAIRS_AT_ONCE):
        some = chosen[begin : begin + PAIRS_AT_ONCE]
        rows = judged_rows(policy, contests(task, some))
        logp = row_logp(policy, rows)
        for side, means in sides.items():
            for group in range(len(some)):
                means.append(float(logp[(rows.group == group) & (rows.label["side"] == side)].mean()))
        if progress is not None:
            progress(begin + len(some), len(chosen))
    return PairEvaluation([win(won, lost) for won, lost in zip(sides[CHOSEN], sides[REJECTED], strict=True)])


def held_out_pairs(task: TextTask, problems: int, split: Split, seed: int) -> list[Problem]:
    """Problems with the pairs to be judged on. Several may ask the same: here each counts, unlike a problem that is answered."""
    drawn = task.sample(problems, split, numpy_generator(seed, "evaluation", split))
    return list({(problem.id, task.pair(problem)): problem for problem in drawn}.values())


def _evaluate_labels(policy: LanguageModel, problems: list[Problem]) -> PairEvaluation:
    """Of each wanted answer, how many unwanted ones are less likely per token: they answer different prompts."""
    wanted = [problem.wanted[1] for problem in problems if problem.wanted is not None]
    found: list[float] = []
    for begin in range(0, len(problems), PAIRS_AT_ONCE):
        some = problems[begin : begin + PAIRS_AT_ONCE]
        rows = written_rows(policy, [each.model_input for each in some], [each.wanted[0] for each in some if each.wanted])
        found += (row_logp(policy, rows) / rows.lengths()).tolist()
    good = [value for value, label in zip(found, wanted, strict=True) if label]
    bad = [value for value, label in zip(found, wanted, strict=True) if not label]
    if not good or not bad:
        kind = "wanted" if good else "unwanted"
        raise UserError(f"the {len(problems)} held-out answers are all {kind}: nothing to compare. Give the test split both kinds.")
    return PairEvaluation([sum(win(one, other) for other in bad) / len(bad) for one in good])


def row_logp(policy: LanguageModel, rows: Trajectories) -> Tensor:
    """The policy's log-likelihood of each row ``[N]``, without gradient, in slices that fit into memory."""
    found = torch.zeros(rows.rows, device=rows.sampled.device)
    with torch.no_grad():
        for here in _slices(policy.slice_tokens(rows), policy.token_budget()):
            piece = rows.take_rows(here)
            found[here] = torch.where(piece.sampled > 0, policy.evaluate(piece, frozenset()).logp, 0.0).sum(1)
    return found


def _slices(cost: Tensor, budget: int) -> Iterator[slice]:
    begin, filled = 0, 0.0
    for row, tokens in enumerate(cost.tolist()):
        if row > begin and filled + tokens > budget:
            yield slice(begin, row)
            begin, filled = row, 0.0
        filled += tokens
    yield slice(begin, len(cost))
