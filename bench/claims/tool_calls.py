"""What the claims on calls of functions share: the task, how long solutions are imitated, and who is right at the end."""

from __future__ import annotations

from typing import Any

from harness import Measure, Result, TextBed, extra

from upslope.methods import find
from upslope.types import Method

LONGEST = 3
"""Arguments of the longest calls, a third of all."""
STEPS, IMITATION = 700, 0.9
"""Steps of a run, and the share of them in which solutions are imitated first."""
IMITATED = round(STEPS * IMITATION)
IMITATION_LR = 1e-3
ACCURACY, LONG, SAMPLED = "accuracy", "accuracy on the longest calls", "share of right samples"
ALONE = "imitation alone"
BEFORE, GAINED = "accuracy after imitation", "accuracy gained after imitation"
ONLY_IMITATES = {"lr": IMITATION_LR, "schedule": "linear"}
"""Of runs without pairs: imitation that ends with a small learning rate, which alone is worth something."""
SETTINGS = {
    "steps": STEPS,
    "tasks_per_step": 24,
    "samples_per_task": 8,
    "schedule": "constant",
    "warm_start": 0.0,
    "eval_every": IMITATED,
    "eval_problems": 600,
    "record": "none",
    "threads": 1,
}


def imitates_at(lr: float, **shares: float) -> dict[str, float]:
    """Knobs of stages that imitate for these shares of the run, with one learning rate whatever that of the pairs is."""
    scale = {f"stages.{name}.lr_scale": IMITATION_LR / lr for name in shares}
    return scale | {f"stages.{name}.share": share for name, share in shares.items()}


def imitation_alone(name: str) -> Method:
    """A method's stages, and imitation again in place of what follows them."""
    return find("sft").derive(name=f"{name}-imitation", stages=find(name).stages)


def right_calls(run: Any) -> dict[str, float]:
    """Greedy answers to the longest held-out calls, sampled ones to all, and the accuracy at the end of imitation."""
    from upslope.rollout.evaluation import evaluate_text

    task, policy = run.components.task, run.policy
    greedy = evaluate_text(task, policy, problems=SETTINGS["eval_problems"], max_tokens=task.max_tokens)
    drawn = evaluate_text(task, policy, problems=100, max_tokens=task.max_tokens, samples=8, temperature=1.0)
    long = [right for problem, (right,) in zip(greedy.problems, greedy.correct, strict=True) if problem.difficulty == LONGEST]
    before = next(record["score"] for record in run.evaluations if record["step"] == IMITATED)
    return {LONG: sum(long) / len(long), SAMPLED: drawn.accuracy, BEFORE: before}


def gained(result: Result) -> float:
    """What the steps behind imitation were worth, on the same problems."""
    return result.after - result.extra[BEFORE]


BED = TextBed(task=f"toolcall:arguments={LONGEST}", model="tiny:width=128", after=right_calls)
MEASURES: dict[str, Measure] = {
    ACCURACY: lambda result: result.after,
    LONG: extra(LONG),
    SAMPLED: extra(SAMPLED),
    BEFORE: extra(BEFORE),
    GAINED: gained,
}
