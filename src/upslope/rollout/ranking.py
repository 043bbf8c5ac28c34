"""How often a reward model ranks the chosen answer of held-out pairs above the rejected one, and which of several it takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from upslope.policies.reward_model import RewardModel
from upslope.rewards.judging import FAILURES, Asker, Judge
from upslope.rewards.preferences import Contest, antisymmetric
from upslope.rollout.evaluation import EVALUATION_SEED
from upslope.rollout.pair_evaluation import PAIRS_AT_ONCE, PairEvaluation, held_out_pairs
from upslope.tasks.text import Split, TextTask


def evaluate_ranking(
    task: TextTask,
    model: RewardModel,
    *,
    problems: int,
    split: Split = "test",
    seed: int = EVALUATION_SEED,
    progress: Callable[[int, int], None] | None = None,
) -> PairEvaluation:
    """Of each held-out contest the share of its pairs, a chosen answer and a rejected one, that are ranked right; a tie is half."""
    chosen = held_out_pairs(task, problems, split, seed)
    wins: list[float] = []
    for begin in range(0, len(chosen), PAIRS_AT_ONCE):
        some = chosen[begin : begin + PAIRS_AT_ONCE]
        sides = [pair for problem in some if (pair := task.pair(problem)) is not None]
        logits = model.logits([(each.model_input, won + lost) for each, (won, lost) in zip(some, sides, strict=True)])
        for (won, _), matrix in zip(sides, logits, strict=True):
            ahead = matrix[: len(won), len(won) :]
            wins.append(float(np.where(ahead == 0, 0.5, ahead > 0).mean()))
        if progress is not None:
            progress(begin + len(some), len(chosen))
    return PairEvaluation(wins)


class RankingJudge(Judge):
    """A reward model as a judge: its scores are compared, and nothing is asked in words, so that it cannot fail.

    It gives the same chances whenever it is asked, and its verdicts are not kept.
    """

    def __init__(self, name: str, model: RewardModel):
        super().__init__(name, None, 1.0)
        self.model = model

    def compare(self, contests: list[Contest], ask: Asker | None = None) -> tuple[list[np.ndarray], dict[str, int]]:  # type: ignore[override]
        logits = self.model.logits([(contest.problem.model_input, contest.texts) for contest in contests])
        chances = [1 / (1 + np.exp(-np.clip(each, -700, 700))) for each in logits]
        pairs = sum(len(set(each.texts)) * (len(set(each.texts)) - 1) // 2 for each in contests)
        found = [antisymmetric(each, len(each), self.name) for each in chances]
        return found, {"pairs": pairs} | dict.fromkeys(FAILURES, 0)
