"""The warm start: a few seconds of supervised learning, so that a model that knows nothing sometimes earns a reward."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from upslope.errors import Remark, UserError
from upslope.policies.language_model import LanguageModel
from upslope.rollout.evaluation import EVALUATION_SEED, answer_chances, distinct_problems, evaluate_text
from upslope.rollout.text_rows import teacher_rows
from upslope.runtime.seeding import numpy_generator
from upslope.tasks.text import Split, TextTask

BATCH = 64
LEARNING_RATE = 7e-4
"""Gentle on purpose. At 2e-3 the same accuracy comes in half the time, but from a model that is sure of its mistakes: it samples
little else, and RL then often stalls (reverse, 100 steps of dhpo, two seeds: 0.79 and 0.96 instead of 0.99 and 0.99)."""
CHECK_EVERY = 5
RISING = 0.25
"""From this share of the target on, it learns at half the rate and is looked at every second step: accuracy comes suddenly."""
CHECK_PROBLEMS = 200
FEW_PROBLEMS = 8
"""So few that the accuracy on them says little: of three problems it is never between a third and two thirds."""
MOST_STEPS = 2000


def warm_start(
    policy: LanguageModel,
    task: TextTask,
    target: float,
    *,
    max_tokens: int,
    seed: int,
    most_steps: int = MOST_STEPS,
    progress: Callable[[int, float], None] | None = None,
) -> tuple[int, float]:
    """Trains on solutions until the greedy accuracy reaches ``target``; the steps it took and the accuracy.

    The stop is decided on the ``tune`` split, which neither training nor the evaluation sees: stopping at the first good
    look at the test problems would flatter them. Where a task has so few answers that the chance of each is known, it is reached
    when these are as the task wants them to begin with.
    """
    split = _judged_on(task)
    optimizer = torch.optim.AdamW(policy.trainable()["policy"], lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    accuracy = 0.0
    for step in range(1, most_steps + 1):
        problems = task.sample(BATCH, "train", numpy_generator(seed, "warm start", step))
        if any(not problem.solution for problem in problems):
            raise UserError(
                f"{task.name} has problems without a reference answer, so {policy.name} cannot be warm-started on them. "
                "Give answers, use a model that already knows something (--model smollm2), or pass --warm-start 0."
            )
        rows = teacher_rows(policy, problems)
        loss = -(policy.evaluate(rows).logp * rows.sampled).sum() / rows.sampled.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.trainable()["policy"], 1.0)
        rising = accuracy > RISING * target
        optimizer.param_groups[0]["lr"] = LEARNING_RATE / 2 if rising else LEARNING_RATE
        optimizer.step()
        if step % (2 if rising else CHECK_EVERY) == 0:
            accuracy = _reached(task, policy, max_tokens, split)
            if progress is not None:
                progress(step, accuracy)
            if accuracy >= target:
                return step, accuracy
    return most_steps, accuracy


def _judged_on(task: TextTask) -> Split:
    """The split by which the end is decided: that of tuning, unless it has so few problems that a run would go on for ever."""
    if task.choices is not None and task.choices.start:
        return "tune"
    count = len(distinct_problems(task, FEW_PROBLEMS, "tune", EVALUATION_SEED))
    if count >= FEW_PROBLEMS:
        return "tune"
    told = f"{task.name} leaves {count} problems to tell when the warm start is over, too few: it ends by those it learns from"
    warnings.warn(Remark(f"{told}. --warm-start 0 leaves it out."), stacklevel=2)
    return "train"


def _reached(task: TextTask, policy: LanguageModel, max_tokens: int, split: Split) -> float:
    """The greedy accuracy on problems that nothing else is decided by; of few answers, 1 where their chances are as they should."""
    if task.choices is None or not task.choices.start:
        return evaluate_text(task, policy, problems=CHECK_PROBLEMS, max_tokens=max_tokens, split=split).accuracy
    problems = distinct_problems(task, CHECK_PROBLEMS, "tune", EVALUATION_SEED)
    chances = answer_chances(policy, problems, task.choices.texts, max_tokens=max_tokens)
    return sum(map(task.choices.at_start, chances)) / len(problems)
