"""A small model that knows one skill well and another a little: what fine-tuning on the second makes of the first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from harness import ON_ONE_CORE, ROOT, Cell, Claim

from upslope.policies import load_language_model
from upslope.rollout.evaluation import evaluate_text
from upslope.rollout.text import TextRollout
from upslope.rollout.text_rows import written_rows
from upslope.runtime.files import whole_folder
from upslope.runtime.seeding import numpy_generator
from upslope.runtime.threads import use_threads
from upslope.tasks import load_task
from upslope.types import Sampling

TAUGHT, KNOWN = "reverse:length=4", "sort:length=4"
"""What is fine-tuned on, and what should not be forgotten over it."""
MODEL = os.path.relpath(ROOT / "build" / "two-skills")
SHARE = 6
"""Rows of the fine-tuned skill in each batch of 64 that the model is made from."""
STEPS = 250
SETTINGS = {
    "steps": 80,
    "lr": 3e-4,
    "tasks_per_step": 64,
    "eval_problems": 300,
    "checkpoint_every": 1000,
    "warm_start": 0.0,
    **ON_ONE_CORE,
}


class TwoSkills(Claim):
    """A claim whose model is made before the first run."""

    def cells(self, seeds: Iterable[int], steps: int = 0) -> list[Cell]:
        make_model(Path(MODEL))
        return super().cells(seeds, steps)


def make_model(folder: Path, steps: int = STEPS) -> None:
    """Trains the model on both skills, once; a folder that is there is left alone."""
    if folder.exists():
        return
    use_threads(1)
    policy, tasks = load_language_model("tiny:width=128", 0), [load_task(TAUGHT), load_task(KNOWN)]
    optimizer = torch.optim.AdamW(policy.trainable()["policy"], lr=2e-3, betas=(0.9, 0.95))
    for step in range(steps):
        random = numpy_generator(0, "two skills", step)
        problems = [
            one for task, rows in zip(tasks, (SHARE, 64 - SHARE), strict=True) for one in task.sample(rows, "train", random)
        ]
        rows = written_rows(policy, [one.model_input for one in problems], [one.answer for one in problems])
        loss = -(policy.evaluate(rows).logp * rows.sampled).sum() / rows.sampled.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.trainable()["policy"], 1.0)
        optimizer.step()
    with whole_folder(folder) as draft:
        policy.save(draft)


def both_skills(run: Any) -> dict[str, float]:
    """For `TextBed.after`: accuracy of greedy answers in the known skill, and how far samples in both have come from the start."""
    start, known = load_language_model(MODEL, 0), load_task(KNOWN)
    found = evaluate_text(known, run.policy, problems=300, max_tokens=known.max_tokens)
    told = {"known": sum(each[0] for each in found.correct) / len(found.correct)}
    return told | {"kl taught": divergence(run.policy, start, load_task(TAUGHT)), "kl known": divergence(run.policy, start, known)}


@torch.no_grad()
def divergence(policy: Any, start: Any, task: Any) -> float:
    """KL(policy || start) per token of the policy's own samples to held-out prompts."""
    rollout = TextRollout(task, policy, tasks=64, samples=4, sampling=Sampling(max_tokens=task.max_tokens), seed=7)
    rows = rollout.answers(task.sample(64, "test", numpy_generator(7, "divergence")), 1, 0)
    # Both by the same pass: what was recorded while sampling is rounded otherwise.
    log = start.evaluate(rows).logp - policy.evaluate(rows).logp
    return float(((log.exp() - 1 - log) * rows.sampled).sum() / rows.sampled.sum())
