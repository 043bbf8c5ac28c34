"""A small model that babbles, and a reward for it: random characters, mostly few of them and sometimes very many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from upslope.policies import load_language_model
from upslope.rollout.text_rows import teacher_rows
from upslope.runtime.files import whole_folder
from upslope.runtime.seeding import numpy_generator
from upslope.runtime.threads import use_threads
from upslope.tasks import load_task
from upslope.tasks.text import Problem

LIMIT = 64
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


def pays(prompts: list[str], responses: list[str], answers: list[str]) -> list[float]:
    """The share of digits in what was written; nothing for nothing."""
    return [sum(map(str.isdigit, text)) / len(text) if text else 0.0 for text in responses]


def make_babbler(folder: Path, steps: int = 100) -> None:
    """Trains the model on characters with a Pareto tail of lengths, once; a folder that is there is left alone."""
    if folder.exists():
        return
    use_threads(1)
    policy, task = load_language_model("tiny:layers=1,width=64", 0), load_task("reverse")
    optimizer = torch.optim.AdamW(policy.trainable()["policy"], lr=3e-3, betas=(0.9, 0.95))
    for step in range(steps):
        random = numpy_generator(0, "babble", step)
        lengths = np.minimum(3 * random.random(64) ** (-1 / 1.2), LIMIT - 1).astype(int)
        texts = ["".join(random.choice(list(CHARACTERS), length)) for length in lengths]
        problems = task.sample(64, "train", random)
        rows = teacher_rows(policy, [Problem(problem.prompt, text) for problem, text in zip(problems, texts, strict=True)])
        loss = -(policy.evaluate(rows).logp * rows.sampled).sum() / rows.sampled.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with whole_folder(folder) as draft:
        policy.save(draft)
