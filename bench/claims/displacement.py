"""Displacement: losses of pairs lower the likelihood of both sides where the sides are alike. Which of them do?"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import Cell, Claim, Measure, Result, Statement, Variant, final, main

from upslope import Watcher
from upslope.methods import catalogue, find
from upslope.objective.advantage.constant import ConstantAdvantage
from upslope.objective.aggregate import SequenceMeanTokenMean
from upslope.objective.data.chosen import ChosenAside
from upslope.objective.ratio import NoRatio
from upslope.objective.surrogate import LogLikelihood
from upslope.objective.terms import Term

CHOSEN, REJECTED, ACCURACY = "logp_chosen", "logp_rejected", "accuracy"
MOVED, MOVED_REJECTED, GAINED = "chosen: nats gained", "rejected: nats gained", "accuracy gained"
IMITATION = Term(
    source="chosen", advantage=ConstantAdvantage(), ratio=NoRatio(), surrogate=LogLikelihood(), aggregate=SequenceMeanTokenMean(),
    when="with",
)  # fmt: skip
WITH_SFT = "dpo with an sft term"


class PairWatch(Watcher):
    """After each evaluation the policy's mean log-likelihood of the two sides of the same held-out pairs."""

    def __init__(self, pairs: int):
        self.pairs, self.found = pairs, {}

    def began(self, run: Any, components: Any) -> None:
        self.components = components

    def evaluated(self, step: int, result: dict[str, Any]) -> None:
        from upslope.rollout.pair_evaluation import row_logp
        from upslope.rollout.pairs import contests, judged_rows

        task, policy = self.components.task, self.components.policy
        problems = task.sample(self.pairs, "test", np.random.default_rng(0))
        rows = judged_rows(policy, contests(task, problems))
        logp, side = row_logp(policy, rows), rows.label["side"]
        self.found[step] = {
            ACCURACY: result["score"], CHOSEN: float(logp[side > 0].mean()), REJECTED: float(logp[side < 0].mean())
        }  # fmt: skip


@dataclass(frozen=True)
class PairBed:
    """A whole run on an embedded task whose rejected answers are one letter off, evaluated after every step."""

    task: str = "reverse"
    model: str = "tiny"
    pairs: int = 100

    def train(self, cell: Cell) -> Result:
        """One cell: each step with accuracy and both likelihoods after it."""
        import upslope as up

        began, watch = time.perf_counter(), PairWatch(self.pairs)
        with tempfile.TemporaryDirectory() as folder:
            run = up.train(cell.method, self.task, model=self.model, knobs=dict(cell.knobs), seed=cell.seed,
                           out=Path(folder) / "run", eval_every=1, record="none", watcher=watch, **cell.settings)  # fmt: skip
            kept = ("loss", "margin", "preferred", "kl_start", "information_entropy")
            steps = {record["step"]: {name: record[name] for name in kept if name in record} for record in run.metrics}
        first = watch.found[0]
        metrics = [{**steps[step], **watch.found[step]} for step in sorted(steps)]
        return Result(cell, first[ACCURACY], metrics[-1][ACCURACY], time.perf_counter() - began, metrics, first)


def gained(metric: str) -> Measure:
    """By how much the last five values, on average, lie above that before the first step."""
    return lambda result: float(np.nanmean(result.curve(metric)[-5:]) - result.extra[metric])


ARMS = {
    "dpo": Variant("dpo"),
    "ipo": Variant("ipo"),
    "simpo": Variant("simpo"),
    WITH_SFT: Variant(find("dpo").derive(name="dpo-sft", data=(ChosenAside(),), terms={"sft": IMITATION})),
    "sppo": Variant("sppo"),
    "did": Variant("did"),
    **({"opa-dpo": Variant("opa-dpo")} if "opa-dpo" in catalogue() else {}),
}

CLAIM = Claim(
    name="displacement",
    title="displacement: what losses of pairs do to the likelihood of both sides",
    about="""A loss of pairs asks for a difference of likelihoods. Where chosen and rejected answer share most of their tokens,
    pushing the rejected one down takes the chosen one along, and what the policy says greedily with it.

    Here a small model that reverses five letters rightly in about two of five cases learns from pairs of the right answer and
    one with a letter changed. After every step its log-likelihood of both sides of the same 100 held-out pairs is measured, and
    its greedy accuracy on 200 held-out problems. dpo, ipo, simpo and `dpo with an sft term` (the chosen answers' mean
    log-likelihood per token, scale 1, in the same update) see the same pairs. sppo and did do not see them: they sample 8
    answers to each of the same prompts, which the task scores; they are there to show where their likelihood of the same pairs
    goes. Each has its own defaults; the learning rate is the same for all. That dpo lowers the chosen likelihood and accuracy,
    and that the others avoid it, is said in the literature of IPO, SPPO, DID and OPA-DPO.""",
    variants=ARMS,
    bed=PairBed(),
    settings={"steps": 60, "tasks_per_step": 32, "samples_per_task": 8, "eval_problems": 200, "threads": 1},
    measures={
        MOVED: gained(CHOSEN),
        MOVED_REJECTED: gained(REJECTED),
        GAINED: gained(ACCURACY),
        "accuracy at the end": final(ACCURACY, 5),
        "loss at the end": final("loss", 5),
    },
    statements=[
        Statement("dpo", "the chosen answers end less likely, nats gained below", 0.0, MOVED, higher=False),
        Statement("dpo", "the rejected answers end less likely, nats gained below", 0.0, MOVED_REJECTED, higher=False),
        Statement("dpo", "accuracy ends lower, gained below", 0.0, GAINED, higher=False),
        *(Statement(name, "chosen answers end likelier than with", "dpo", MOVED) for name in ARMS if name != "dpo"),
        *(Statement(name, "accuracy ends no lower than it began, gained above", 0.0, GAINED) for name in ARMS if name != "dpo"),
    ],
    seeds=5,
    curves={
        CHOSEN: "log-likelihood of chosen answers",
        REJECTED: "log-likelihood of rejected answers",
        ACCURACY: "greedy accuracy",
    },
    chosen="""The setting is that in which it was first seen (20 steps of dpo on `reverse`, one seed: accuracy 0.45 to 0.32),
    with more steps; defaults otherwise. It was only tried that every arm runs, for a few steps. Nothing was varied.""",
)

if __name__ == "__main__":
    main(CLAIM)
