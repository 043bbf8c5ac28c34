"""What Adam's moments in 16 and in 8 bits cost in quality: SmolLM2-135M on two tasks, on one GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from harness import ROOT, Cell, Claim, Statement, TextBed, Variant, final, main

SUMS, KNIGHTS = os.path.relpath(ROOT / "build" / "sums-in-words.jsonl"), "reasoning-gym:knights_knaves:n_people=2"
WITHIN = 0.05


def make_sums(file: Path, count: int = 4000) -> None:
    """Sums of two numbers of two digits, asked in words."""
    if file.exists():
        return
    random, lines = np.random.default_rng(0), []
    for _ in range(count):
        first, second = (int(each) for each in random.integers(10, 100, 2))
        lines.append({"prompt": f"What is {first} plus {second}?", "answer": str(first + second)})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Sums(Claim):
    """A claim whose sums are written before the first run."""

    def cells(self, seeds: Iterable[int], steps: int = 0) -> list[Cell]:
        make_sums(Path(SUMS))
        return super().cells(seeds, steps)


CLAIM = Sums(
    name="adam-states",
    title="Adam's moments in float32, in bfloat16 and in 8 bits, on SmolLM2",
    about="""Adam's two moments take eight bytes a parameter in float32, four in bfloat16 (rounded at random, without bias) and
    about two in 8 bits (torchao's numbers, a scale for each 256). SmolLM2-135M-Instruct learns sums of two numbers of two
    digits, asked in words, and who of two people tells the truth, with all its weights. What is claimed is that the score does not
    suffer by more than 0.05. Scores are over held-out problems, answered greedily.""",
    variants={states: Variant("dr-grpo", settings={"adam_states": states}) for states in ("float32", "bfloat16", "8bit")},
    bed=TextBed(SUMS, "smollm2", "number"),
    conditions={
        "sums asked in words": {"steps": 60, "tasks_per_step": 64, "max_tokens": 24, "lr": 2e-6},
        "who tells the truth": {
            "bed": {"task": KNIGHTS, "reward": ""},
            "steps": 60,
            "tasks_per_step": 32,
            "max_tokens": 96,
            "lr": 5e-6,
            "temperature": 0.7,
        },
    },
    settings={
        "device": "cuda",
        "samples_per_task": 8,
        "threads": 2,
        "eval_problems": 250,
        "watch_kl": False,
        "checkpoint_every": "none",
        "record": "none",
    },
    measures={"score": lambda result: result.after, "final reward of samples": final("reward")},
    statements=[
        Statement(states, f"score at most {WITHIN} below that of", "float32", "score", margin=WITHIN)
        for states in ("bfloat16", "8bit")
    ],
    seeds=3,
    curves={"reward": "reward of samples", "grad_norm": "gradient norm"},
    chosen="""learning rates and lengths are those found for this model and these tasks before, with moments in float32; nothing
    was tried with others. Of the sums 230 are held out. Of who tells the truth one answer for all gets up to 0.28 (`smollm2-long`),
    so that most of what is learned there is the form of an answer. Measured when in 8 bits a second moment too small for its block
    was held as zero, as torchao does; since then it is held as the smallest value.""",
)

if __name__ == "__main__":
    main(CLAIM)
