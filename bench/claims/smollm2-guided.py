"""Demonstrations and hints on a real model: SmolLM2-135M on a task that it cannot do, on one GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from harness import ROOT, Cell, Claim, Statement, TextBed, Variant, average, final, main

DATA = os.path.relpath(ROOT / "build" / "spelled-backwards.jsonl")
NO_KL = {"regularize.weight": 0.0}


def make_words(file: Path, count: int = 4000) -> None:
    """Words of four letters to spell backwards, with a letter more of the answer in each hint."""
    if file.exists():
        return
    random = np.random.default_rng(0)
    lines = []
    for _ in range(count):
        letters = random.choice(list("abcdefghijklmnopqrstuvwxyz"), 4, replace=False).tolist()
        answer = " ".join(reversed(letters))
        prompt = f"Spell the letters {' '.join(letters)} backwards, with spaces. Write only the letters."
        hints = [" ".join(letters[::-1][: shown + 1]) for shown in range(4)]
        lines.append({"prompt": prompt, "answer": answer, "hints": [f"The answer begins with: {hint}" for hint in hints]})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Spelling(Claim):
    """A claim whose problems are made before the first run."""

    def cells(self, seeds: Iterable[int], steps: int = 0) -> list[Cell]:
        make_words(Path(DATA))
        return super().cells(seeds, steps)


CLAIM = Spelling(
    name="smollm2-guided",
    title="demonstrations and hints on SmolLM2",
    about="""Where a model cannot do a task at all, its own samples teach it nothing. HPT imitates the answer of a problem that all
    samples get wrong; Scaf-GRPO asks with hints and keeps the right answer with the weakest. Here SmolLM2-135M-Instruct spells four
    letters backwards. Accuracy is over held-out letters, without a hint.""",
    variants={
        "grpo": Variant("grpo", NO_KL),
        "hpt": Variant("hpt"),
        "scaf-grpo": Variant("scaf-grpo", {"data.begin": 0.0}),
        "ghpo": Variant("ghpo"),
    },
    bed=TextBed(DATA, "smollm2", "contains"),
    settings={
        "device": "cuda",
        "steps": 60,
        "tasks_per_step": 32,
        "samples_per_task": 8,
        "max_tokens": 24,
        "lr": 1e-5,
        "eval_problems": 300,
        "watch_kl": False,
        "checkpoint_every": 1000,
    },
    measures={
        "accuracy": lambda result: result.after,
        "final reward of samples": final("reward"),
        "tokens of a step": average("tokens"),
    },
    statements=[
        Statement("hpt", "accuracy above that of", "grpo", "accuracy"),
        Statement("scaf-grpo", "accuracy above that of", "grpo", "accuracy"),
        Statement("ghpo", "accuracy above that of", "grpo", "accuracy"),
    ],
    curves={"reward": "reward of samples", "guided_groups": "groups with a hint", "gated_groups": "groups that imitate"},
    seeds=5,
    chosen="""lr 1e-5 was the first tried. With the reward `exact` and 12 tokens no hint ever led to a right answer (seed 0), since
    the model wraps it in a sentence: the reward was then taken to be `contains`.""",
)

if __name__ == "__main__":
    main(CLAIM)
