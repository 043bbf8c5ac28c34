"""The circle: preferences that go round, which no reward expresses, and who ends where."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import Cell, Claim, Measure, Result, Statement, Variant, average, final, main

from upslope.evolve.comparing import Compared
from upslope.methods import find
from upslope.tasks.rps import ANSWERS, RockScissorsPaper

TASK = "rps"
LAST, WHOLE, AVERAGE = "exploitability at the end", "mean exploitability of the second half", "exploitability of the average policy"
BRADLEY_TERRY, UNANCHORED = "rloo with a Bradley-Terry model", "inpo without its anchor"


def bradley_terry_scores(shares: np.ndarray, chances: np.ndarray, steps: int = 2000) -> np.ndarray:
    """The scores that explain best who wins among pairs drawn by these shares: what a reward model learns, with all the data."""
    drawn, scores = np.outer(shares, shares), np.zeros(len(shares))
    for _ in range(steps):
        said = 1 / (1 + np.exp(scores[None, :] - scores[:, None]))
        scores += (drawn * (chances - said)).sum(1) * 4
    return scores - scores.mean()


class Scored:
    """A reward model of pairs that the policy drew as it began: one number for each answer, and nothing that goes round."""

    def __init__(self) -> None:
        task = RockScissorsPaper()
        self.scores = dict(zip(ANSWERS, bradley_terry_scores(np.array(task.start), task.matrix), strict=True))

    def __call__(self, prompts: list[str], responses: list[str], answers: list[str]) -> list[float]:
        return [float(self.scores.get(text.strip(), -5.0)) for text in responses]


@dataclass(frozen=True)
class CircleBed:
    """A whole run on rock, scissors, paper, evaluated after every step from the policy's exact chances.

    ``scored=True`` among the settings of a variant rewards answers by a Bradley-Terry model.
    """

    task: str = TASK
    model: str = "tiny"

    def train(self, cell: Cell) -> Result:
        """One cell, with ``exploitability`` and that of the average policy so far in every step."""
        import upslope as up

        began, settings = time.perf_counter(), dict(cell.settings)
        reward: Any = Scored() if settings.pop("scored", False) else ()
        with tempfile.TemporaryDirectory() as folder:
            run = up.train(cell.method, self.task, model=self.model, reward=reward, knobs=dict(cell.knobs), seed=cell.seed,
                           out=Path(folder) / "run", eval_every=1, eval_problems=1, record="none", **settings)  # fmt: skip
            metrics = exploited(run)
        return Result(cell, metrics[0]["exploitability"], metrics[-1]["exploitability"], time.perf_counter() - began, metrics[1:])


def exploited(run: Any) -> list[dict[str, Any]]:
    """A record for each evaluation, from that before the first step."""
    task = RockScissorsPaper()
    chances = np.array([[record[f"chance_{text}"] for text in ANSWERS] for record in run.evaluations])
    so_far = chances.cumsum(0) / np.arange(1, len(chances) + 1)[:, None]
    steps = {record["step"]: record for record in run.metrics}
    return [
        {
            **{name: value for name, value in steps.get(place, {}).items() if name in ("entropy", "kl_start", "preference_gap")},
            "exploitability": task.played(now)["exploitability"],
            "exploitability of the average": task.played(mean)["exploitability"],
            **{f"chance of {text}": float(chance) for text, chance in zip(ANSWERS, now, strict=True)},
        }
        for place, (now, mean) in enumerate(zip(chances, so_far, strict=True))
    ]


def second_half(metric: str) -> Measure:
    """Mean over the second half of the steps."""
    return lambda result: float(np.nanmean(result.curve(metric)[len(result.metrics) // 2 :]))


NASH_DEFAULTS, HALF = "nash-md with its defaults", {"tasks_per_step": 32}

CLAIM = Claim(
    name="circle",
    title="the circle: rock, scissors, paper",
    about="""Rock beats scissors, scissors beat paper, paper beats rock, each in nine of ten comparisons: no answer is best, and no
    reward says so. The best policy gives all three alike; what the best reply wins against a policy beyond 1/2 is its
    *exploitability*, 0 at best and 0.4 for a policy of one answer. It is computed after every step from the exact chances of a
    small language model, which begins with rock in four of five answers.

    `rloo with a Bradley-Terry model` is rewarded by the three scores that explain best the comparisons of pairs drawn at the start.
    All others see comparisons of their own samples: spo-minimax and online-dpo by win rates in place of rewards, sppo and inpo by
    their own. inpo has η = 1 and τ = 0.03, `inpo without its anchor` τ = 0; nash-md has a = β = 0.03, as strong an anchor, and its
    defaults are a = 0.5 and β = 0.1. Each step draws 64 pairs of answers; for nash-md they are 64 of the
    policy and 64 of its opponent. The papers say that the average of SPPO's policies approaches the best one
    and that INPO's and Nash-MD's last policy does.""",
    variants={
        BRADLEY_TERRY: Variant("rloo", settings={"scored": True}),
        "online-dpo": Variant(find("online-dpo").derive(data=Compared(pays=True))),
        "spo-minimax": Variant("spo-minimax"),
        "sppo": Variant("sppo"),
        UNANCHORED: Variant("inpo", {"ratio.weights": (0.0, 1.0)}),
        "inpo": Variant("inpo", {"ratio.weights": (0.03, 0.97)}),
        "nash-md": Variant("nash-md", {"data.0.share": 0.03, "regularize.weight": 0.03}, settings=HALF),
        NASH_DEFAULTS: Variant("nash-md", settings=HALF),
    },
    bed=CircleBed(),
    settings={"steps": 400, "tasks_per_step": 64, "samples_per_task": 2, "lr": 5e-4, "threads": 1},
    measures={
        LAST: final("exploitability"),
        WHOLE: second_half("exploitability"),
        AVERAGE: final("exploitability of the average", 1),
        "mean entropy": average("entropy"),
    },
    statements=[
        Statement(BRADLEY_TERRY, "ends as one answer, exploitability above", 0.35, LAST),
        Statement("sppo", "goes round, mean exploitability of the second half above", 0.05, WHOLE),
        Statement("sppo", "its average policy has an exploitability below", 0.05, AVERAGE, higher=False),
        *(Statement(name, "ends with an exploitability below", 0.05, LAST, higher=False) for name in ("inpo", "nash-md")),
        Statement("inpo", "lower exploitability of the second half than", UNANCHORED, WHOLE, higher=False),
        Statement("inpo", "lower exploitability of the second half than", "sppo", WHOLE, higher=False),
    ],
    seeds=5,
    curves={"exploitability": "exploitability", "exploitability of the average": "exploitability of the average policy so far"},
    chosen="""On seed 100 with inpo alone, by its exploitability at the end: best and worst of 8 samples of 16 prompts, a learning
    rate of 1e-3, gave 0.03 to 0.12 with τ = 0.05 or 0.03 and 200 to 300 steps, constant or falling, and 0.26 with η = 0.3; pairs of
    64 prompts with τ = 0.03 gave 0.07 at a constant 5e-4 and 0.03 at a falling 1e-3. Pairs and a falling 5e-4 were taken. Anchored
    at this start, the exact solution has an exploitability of 0.045 with τ = 0.05 and of 0.025 with 0.03.
    A first run of 120 steps, of an earlier inpo in which the meeting of best and worst decided instead of win rates, is left out.
    nash-md's a and β were taken from exact gradients (0.026), without a run. With the first three seeds alone the line on sppo's
    average policy held.""",
)

if __name__ == "__main__":
    main(CLAIM)
