"""A small model that can use a hint and little else: where the guidance methods are compared."""

from __future__ import annotations

from pathlib import Path

import torch

from upslope.policies import load_language_model
from upslope.rollout.text_rows import written_rows
from upslope.runtime.files import whole_folder
from upslope.runtime.seeding import numpy_generator
from upslope.runtime.threads import use_threads
from upslope.tasks import load_task

TASK = "reverse:length=6"
SHOWN = (4, 5, 6)
"""Letters of the answer that a hint shows while the model is made: it learns to copy them and to find one or two more."""


def make_reader(folder: Path, steps: int = 150) -> None:
    """Trains the model on prompts with most of the answer in them, once; a folder that is there is left alone."""
    if folder.exists():
        return
    use_threads(1)
    policy, task = load_language_model("tiny:width=128", 0), load_task(TASK)
    optimizer = torch.optim.AdamW(policy.trainable()["policy"], lr=2e-3, betas=(0.9, 0.95))
    for step in range(steps):
        random = numpy_generator(0, "reader", step)
        problems = task.sample(64, "train", random)
        shown = random.choice(SHOWN, len(problems)).tolist()
        prompts = [task.guided(each, "", each.answer[:letters]) for each, letters in zip(problems, shown, strict=True)]
        rows = written_rows(policy, prompts, [each.answer for each in problems])
        loss = -(policy.evaluate(rows).logp * rows.sampled).sum() / rows.sampled.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.trainable()["policy"], 1.0)
        optimizer.step()
    with whole_folder(folder) as draft:
        policy.save(draft)
