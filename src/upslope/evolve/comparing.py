"""Comparing the answers of a group: who wins, as columns of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from upslope.objective.base import Data, DataContext
from upslope.rewards.judging import Asker, Question
from upslope.rewards.preferences import Contest, bradley_terry, compared_by_task, flipped
from upslope.tasks.text import Problem, Scores
from upslope.tasks.turns import Turn
from upslope.types import Metrics, Trajectories

WIN_RATE, WITH_SELF, BEATS_BEST, BEATS_WORST = "win_rate", "win_rate_with_self", "beats_best", "beats_worst"
"""The columns ``signal[...]`` ``[N]`` that rows get."""


@dataclass(frozen=True)
class Compared(Data):
    r"""Asks which answers of a group are preferred, and leaves what each row needs to know of it in its ``signal`` ``[N]``.

    With :math:`P_{ij}` the chance that answer i beats answer j of a group of K, :math:`P_{ij} + P_{ji} = 1`:

    .. math::  win\_rate_i = \frac{1}{K - 1} \sum_{j \ne i} P_{ij},  \qquad  win\_rate\_with\_self_i = \frac{1}{K} \sum_j P_{ij}

    ``beats_best`` and ``beats_worst`` are its chances against the group's answer of highest and of lowest win rate, the first of
    those that are equal; these rows themselves have 1/2 there. An answer alone in its group has 1/2 everywhere. All rows of a group
    take part, whoever wrote them. The matrix itself goes no further than this part.

    Fields:
        by: who decides: the ``"task"``, where it compares answers, or the ``"reward"``, by Bradley and Terry's
            :math:`P_{ij} = \sigma((r_i - r_j) / scale)`. ``"any"`` takes a judge, if the run has one, then the task, and
            the reward where neither compares.
        scale: of the reward. A smaller one makes verdicts surer; only the reward's are changed by it.
        noise: share of verdicts that are turned round, of a pair of texts always the same.
        pays: the win rate takes the place of what the task pays.
    """

    text_only: ClassVar[bool] = True
    provides: ClassVar[frozenset[str]] = frozenset(f"signal.{name}" for name in (WIN_RATE, WITH_SELF, BEATS_BEST, BEATS_WORST))
    ranges: ClassVar = {"scale": "(0, inf)", "noise": "[0, 1]"}

    by: Literal["any", "task", "reward"] = "any"
    scale: float = 1.0
    noise: float = 0.0
    pays: bool = False

    @property
    def needs_of_task(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"comparisons"}) if self.by == "task" else frozenset()

    @property
    def takes_judge(self) -> bool:
        """Whether a judge decides, where the run has one."""
        return self.by == "any"

    def needs(self) -> frozenset[str]:
        return frozenset({"group"})

    def __call__(self, rows: Trajectories, context: DataContext) -> Trajectories:
        places = [(rows.group == group).nonzero().squeeze(1).tolist() for group in torch.unique(rows.group)]
        problems = context.problems(rows)
        contests = [Contest(problems[mine[0]], tuple(str(rows.info[row]["response"]) for row in mine)) for mine in places]
        chances, counts = self._chances(rows, places, contests, context)
        found = {name: torch.zeros(rows.rows) for name in (WIN_RATE, WITH_SELF, BEATS_BEST, BEATS_WORST)}
        for mine, contest, matrix in zip(places, contests, chances, strict=True):
            for name, column in columns_of(flipped(matrix, contest, self.noise, context.seed)).items():
                found[name][mine] = torch.from_numpy(column).float()
        found |= {f"judge_{name}": torch.full((rows.rows,), float(count)) for name, count in counts.items()}
        rows = rows.replace(signal={**rows.signal, **{name: column.to(rows.reward.device) for name, column in found.items()}})
        return _paid(rows, rows.signal[WIN_RATE]) if self.pays else rows

    def _chances(
        self, rows: Trajectories, places: Sequence[list[int]], contests: Sequence[Contest], context: DataContext
    ) -> tuple[list[np.ndarray], dict[str, int]]:
        """The matrix of each group, and of a judge's verdicts how many failed."""
        if self.takes_judge and context.judge is not None:
            judged: tuple[list[np.ndarray], dict[str, int]] = context.judge.compare(contests, policy_asker(context))
            return judged
        if self.by == "reward" or (self.by == "any" and not context.task.compares):
            reward = rows.reward.tolist()
            return [bradley_terry([reward[row] for row in mine], self.scale) for mine in places], {}
        return [compared_by_task(context.task, contest) for contest in contests], {}

    def metrics(self, rows: Trajectories) -> Metrics:
        """``preference_gap``: the chance that a group's best answer beats its worst, over 1/2; zero if all are alike. Of a
        judge, the pairs of texts that were compared and how many of them it failed on, by kind."""
        index, groups = rows.group_index()
        best = torch.full((groups,), 0.5, device=index.device).scatter_reduce_(0, index, rows.signal[BEATS_WORST], "amax")
        if not groups:
            return {}
        judged = {name: float(column[0]) for name, column in rows.signal.items() if name.startswith("judge_")}
        return {"preference_gap": float(best.mean()) - 0.5} | judged


def policy_asker(context: DataContext) -> Asker:
    """The policy's own verdicts, in further turns that nobody learns from; what leaves no room for one gets none."""

    def ask(asked: Sequence[Question]) -> list[str | None]:
        found: list[str | None] = [""] * len(asked)
        fitting = [place for place, fits in enumerate(context.fits([question.prompt for question in asked])) if fits]
        turns = [
            Turn(asked[place].prompt, asked[place].problem, learn="nothing", role="judge", scorer=_unscored) for place in fitting
        ]
        for place, note in zip(fitting, context.sample(turns).info if turns else (), strict=True):
            found[place] = str(note["response"])
        return found

    return ask


def _unscored(problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
    """Verdicts are no answers."""
    return Scores([0.0] * len(responses), [False] * len(responses))


def columns_of(chances: np.ndarray) -> dict[str, np.ndarray]:
    """What each of K answers needs to know of the matrix between them, ``[K]`` each."""
    size = len(chances)
    with_self = chances.mean(1)
    others = (chances.sum(1) - 0.5) / (size - 1) if size > 1 else np.full(size, 0.5)
    best, worst = int(others.argmax()), int(others.argmin())
    return {WIN_RATE: others, WITH_SELF: with_self, BEATS_BEST: chances[:, best], BEATS_WORST: chances[:, worst]}


def _paid(rows: Trajectories, win_rate: Tensor) -> Trajectories:
    """The rows with their win rate in place of the task's share of the reward."""
    reward = rows.reward - rows.verdict() + win_rate
    return rows.replace(reward=reward, components={**rows.components, "verdict": win_rate})
