"""A model that can reverse two letters and not five, and the problems of both lengths: easy ones and impossible ones."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import ON_ONE_CORE, ROOT, Cell, Claim, Result, TextBed

from upslope.policies import load_language_model
from upslope.rollout.evaluation import evaluate_text
from upslope.rollout.text_rows import teacher_rows
from upslope.runtime.files import whole_folder
from upslope.runtime.seeding import numpy_generator
from upslope.runtime.threads import use_threads
from upslope.tasks import load_task

EASY, HARD = "reverse:length=2", "reverse:length=5"
MODEL = os.path.relpath(ROOT / "build" / "half-known")


def make_half_known(folder: Path, steps: int = 30) -> None:
    """Trains the model on the easy problems alone, once; a folder that is there is left alone."""
    if folder.exists():
        return
    use_threads(1)
    policy, task = load_language_model("tiny", 0), load_task(EASY)
    optimizer = torch.optim.AdamW(policy.trainable()["policy"], lr=2e-3, betas=(0.9, 0.95))
    for step in range(steps):
        rows = teacher_rows(policy, task.sample(64, "train", numpy_generator(0, "half known", step)))
        loss = -(policy.evaluate(rows).logp * rows.sampled).sum() / rows.sampled.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with whole_folder(folder) as draft:
        policy.save(draft)


def both_lengths(run: Any) -> dict[str, float]:
    """For `TextBed.after`: greedy accuracy on held-out problems of each kind; and what samples of hard ones give."""
    found = {}
    for name, spec in (("easy", EASY), ("hard", HARD)):
        answers = evaluate_text(load_task(spec), run.policy, problems=100, max_tokens=8).correct
        found[name] = sum(map(sum, answers)) / len(answers)
    return found | {"distinct": eight_samples(load_task(HARD), run.policy)["distinct"]}


def eight_samples(task: Any, policy: Any) -> dict[str, float]:
    """``sampled`` accuracy, and ``distinct`` answers among 8 samples of a held-out problem, right or wrong."""
    found = evaluate_text(task, policy, problems=50, max_tokens=8, samples=8, temperature=1.0)
    right = [sum(each) / len(each) for each in found.correct]
    return {"sampled": sum(right) / len(right), "distinct": sum(len(set(said)) for said in found.responses) / len(right)}


def gated(result: Result, steps: int = 10) -> float:
    """Share of groups that imitated in the last steps; 0 where there is no gate."""
    share = result.curve("gated_groups")[-steps:]
    return 0.0 if np.isnan(share).all() else float(np.nanmean(share))


class HalfKnown(Claim):
    """A claim whose model is made before the first run."""

    def cells(self, seeds: Iterable[int], steps: int = 0) -> list[Cell]:
        make_half_known(Path(MODEL))
        return super().cells(seeds, steps)


BED = TextBed(f"{EASY}+{HARD}", MODEL, after=both_lengths)
SETTINGS = {
    "steps": 200,
    "tasks_per_step": 32,
    "samples_per_task": 8,
    "updates_per_step": 2,
    "lr": 7e-4,
    "eval_problems": 100,
    "checkpoint_every": 1000,
    "watch_kl": False,
    "record": "none",
    **ON_ONE_CORE,
}
EASY_ACCURACY, HARD_ACCURACY = "accuracy on easy problems", "accuracy on hard problems"
DISTINCT = "distinct answers to a hard problem, of 8"
