"""What claims about learning without labels measure: samples of held-out problems, and how often votes were right."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Result

ACCURACY, GAIN = "held-out accuracy", "gain in held-out accuracy"
SETTINGS = {
    "warm_start": 0.5,
    "steps": 100,
    "tasks_per_step": 12,
    "samples_per_task": 32,
    "updates_per_step": 2,
    "temperature": 0.8,
    "lr": 1e-4,
    "eval_problems": 100,
    "checkpoint_every": 1000,
    "watch_kl": False,
    "record": "none",
}


def gain(result: Result) -> float:
    return result.after - result.before


def accuracy(result: Result) -> float:
    return result.after


def sixteen_samples(run: Any) -> dict[str, float]:
    """For `TextBed.after`: ``pass@1``, ``pass@16`` and ``distinct`` right answers among 16 samples of a held-out problem."""
    from upslope.rollout.evaluation import evaluate_text

    task = run.components.task
    found = evaluate_text(task, run.policy, problems=64, max_tokens=task.max_tokens, samples=16, temperature=1.0)
    pairs = [zip(said, right, strict=True) for said, right in zip(found.responses, found.correct, strict=True)]
    distinct = [len({text for text, right in each if right}) for each in pairs]
    return {"pass@1": found.pass_at(1)[0], "pass@16": found.pass_at(16)[0], "distinct": float(np.mean(distinct))}
