"""What claims about learning without labels measure: samples of held-out problems, and how often votes were right."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import ON_ONE_CORE, ROOT, Cell, Claim, Result

from upslope.policies import load_language_model
from upslope.rollout.evaluation import evaluate_text
from upslope.rollout.text import teacher_rows
from upslope.runtime.files import whole_folder
from upslope.runtime.seeding import numpy_generator
from upslope.runtime.threads import use_threads
from upslope.tasks import load_task
from upslope.tasks.text import Problem

PAIRS = "pairs:largest=40"
MODEL = os.path.relpath(ROOT / "build" / "pairing")
ACCURACY, GAIN = "pass@1", "gain in accuracy of samples"
SETTINGS = {
    "warm_start": 0.95,
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
    **ON_ONE_CORE,
}


def make_pairing(folder: Path, steps: int = 240) -> None:
    """Trains a model on several right answers to each problem, once; a folder that is there is left alone.

    The smaller number is at most two: these sums are learned in a minute, and a problem has up to six right answers.
    """
    if folder.exists():
        return
    use_threads(1)
    policy, task = load_language_model("tiny", 0), load_task(PAIRS)
    optimizer = torch.optim.AdamW(policy.trainable()["policy"], lr=2e-3, betas=(0.9, 0.95))
    for step in range(steps):
        random = numpy_generator(0, "pairing", step)
        rows = teacher_rows(policy, [_paired(problem, random) for problem in task.sample(64, "train", random)])
        loss = -(policy.evaluate(rows).logp * rows.sampled).sum() / rows.sampled.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with whole_folder(folder) as draft:
        policy.save(draft)


def _paired(problem: Problem, random: np.random.Generator) -> Problem:
    """The problem with one of its right answers, drawn."""
    total = int(problem.prompt[1:-1])
    small = int(random.integers(0, min(total, 2) + 1))
    pair = (small, total - small) if random.random() < 0.5 else (total - small, small)
    return Problem(problem.prompt, f"{pair[0]}+{pair[1]}")


class Pairing(Claim):
    """A claim whose model is made before the first run."""

    def cells(self, seeds: Iterable[int], steps: int = 0) -> list[Cell]:
        make_pairing(Path(MODEL))
        return super().cells(seeds, steps)


def gain(result: Result, steps: int = 10) -> float:
    """How much more of the samples are right by the true labels in the last steps than in the first five."""
    reward = result.curve("reward")
    return float(reward[-steps:].mean() - reward[:5].mean())


def votes(metric: str) -> Callable[[Result], float]:
    """Mean of a metric of votes over the run; 1 where nobody votes, for the labels are the true ones."""

    def measure(result: Result) -> float:
        found = result.curve(metric)
        return 1.0 if np.isnan(found).all() else float(np.nanmean(found))

    return measure


def sixteen_samples(run: Any) -> dict[str, float]:
    """For `TextBed.after`: ``pass@1``, ``pass@16`` and ``distinct`` right answers among 16 samples of a problem.

    The problems are those it learned on: without labels they are as good as any others.
    """
    task = run.components.task
    found = evaluate_text(task, run.policy, problems=64, max_tokens=task.max_tokens, samples=16, temperature=1.0, split="train")
    pairs = [zip(said, right, strict=True) for said, right in zip(found.responses, found.correct, strict=True)]
    distinct = [len({text for text, right in each if right}) for each in pairs]
    return {"pass@1": found.pass_at(1)[0], "pass@16": found.pass_at(16)[0], "distinct": float(np.mean(distinct))}
