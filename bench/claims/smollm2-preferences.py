"""Preferences on a real model: SmolLM2-135M on two tasks of reasoning-gym that it sometimes solves, on one GPU."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import ROOT, Cell, Claim, Measure, Result, Statement, Variant, extra, main

TASKS = {
    "chain_sum": {"reward": "number", "tokens": 100_000},
    "course_schedule": {"reward": "exact", "tokens": 60_000},
}
LEVELS = {"chain_sum": 1, "course_schedule": 0}
"""Of the tasks' own curricula: two numbers of up to two digits, and the fewest courses."""
LR = {"grpo": 1e-5, "online-dpo": 1e-5, "sppo": 1e-5, "inpo": 3e-6}
"""Of each method; see how it was chosen."""
SHARE = 5
"""The last fifth of them is what the end is measured by."""
AFTER, SAMPLED, SPENT, STEPS = "accuracy", "share of right samples at the end", "tokens sampled", "steps"


def file_of(task: str) -> str:
    return os.path.relpath(ROOT / "build" / f"{task}-level-{LEVELS[task]}.jsonl")


def make_problems(task: str, train: int = 2000) -> None:
    """Problems in a file, so that the machine with the GPU need not have reasoning-gym."""
    file = Path(file_of(task))
    if file.exists():
        return
    from upslope.tasks import load_task

    loaded, lines = load_task(f"reasoning-gym:{task}:level={LEVELS[task]}"), dict[str, dict[str, str]]()
    for split, count in (("test", 300), ("tune", 20), ("train", train)):
        for problem in loaded.sample(count, split, np.random.default_rng(0)):  # the same sum may be drawn for two splits
            lines.setdefault(problem.prompt, {"prompt": problem.prompt, "answer": problem.answer, "split": split})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))


class TwoTasks(Claim):
    """A claim whose problems are written before the first run."""

    def cells(self, seeds: Iterable[int], steps: int = 0) -> list[Cell]:
        for task in TASKS:
            make_problems(task)
        return super().cells(seeds, steps)


class Spent:
    """A callback that ends the run when its tokens are sampled."""

    def __init__(self, tokens: int):
        self.left = float(tokens)

    def on_step(self, step: int, metrics: dict[str, float]) -> bool:
        self.left -= metrics["tokens"]
        return self.left > 0


@dataclass(frozen=True)
class TokenBed:
    """A whole run on problems of a file, ended when ``tokens`` were sampled; ``steps`` of the settings is the most it may take."""

    task: str = ""
    model: str = "smollm2"
    reward: str = ""
    tokens: int = 0

    def train(self, cell: Cell) -> Result:
        """One cell; steps that were not needed tell nothing."""
        import upslope as up

        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            run = up.train(cell.method, self.task, model=self.model, reward=self.reward, knobs=dict(cell.knobs), seed=cell.seed,
                           out=Path(folder) / "run", callbacks=[Spent(self.tokens)], **cell.settings)  # fmt: skip
            metrics, summary = run.metrics, run.summary
        told = {SPENT: sum(record["tokens"] for record in metrics), STEPS: float(len(metrics)), SAMPLED: at_the_end(metrics)}
        unused: list[dict[str, float]] = [{}] * (cell.settings["steps"] - len(metrics))
        seconds = time.perf_counter() - began
        return Result(cell, summary["score_before"], summary["score_after"], seconds, metrics + unused, told)


def at_the_end(metrics: list[dict[str, float]]) -> float:
    """The mean reward of samples in the steps of the last tokens."""
    spent = np.cumsum([record["tokens"] for record in metrics])
    return float(
        np.mean([record["reward"] for record, now in zip(metrics, spent, strict=True) if now > spent[-1] * (1 - 1 / SHARE)])
    )


MEASURES: dict[str, Measure] = {
    "accuracy before": lambda result: result.before,
    AFTER: lambda result: result.after,
    **{name: extra(name) for name in (SAMPLED, SPENT, STEPS)},
}
NO_KL = {"regularize.weight": 0.0}

CLAIM = TwoTasks(
    name="smollm2-preferences",
    title="preferences on SmolLM2",
    about=f"""Where answers can be scored, what is lost by learning only from who is better? SmolLM2-135M-Instruct answers two
    tasks of reasoning-gym: `chain_sum`, where the last number of an answer counts and about one sample in twenty-five is right
    at first, and `course_schedule`, to be answered with True or False and nothing else, where about one in three is.

    `course_schedule` turned out to be easy to see through, after it was run: at this level every problem with seven pairs of
    courses is True and every one with more is False, so that the length of the list tells the answer. Three of the methods find
    that and end where no more can be won; its lines say how steady they are there, and not that anybody plans courses.

    `grpo`, without its KL term, learns from the rewards of 8 answers; `online-dpo` from the best and the worst of them, `sppo`
    and `inpo` from win rates that follow from the rewards (Bradley and Terry), all with their defaults. A run ends when it has
    sampled its tokens, as many for every method: one that makes answers shorter has more steps. Each method has a learning rate
    of its own, constant after five steps. Accuracy is greedy, over held-out problems; `at the end` is in the last {SHARE}th of
    the tokens.""",
    variants={name: Variant(name, NO_KL if name == "grpo" else {}, {"lr": lr}) for name, lr in LR.items()},
    bed=TokenBed(),
    settings={
        "device": "cuda",
        "steps": 120,
        "tasks_per_step": 32,
        "samples_per_task": 8,
        "max_tokens": 16,
        "warmup": 5,
        "schedule": "constant",
        "eval_problems": 200,
        "watch_kl": False,
        "checkpoint_every": 1000,
        "record": "none",
    },
    conditions={task: {"bed": {"task": file_of(task), **fields}} for task, fields in TASKS.items()},
    measures=MEASURES,
    statements=[
        Statement(name, words, "grpo", measure)
        for name in ("online-dpo", "sppo", "inpo")
        for words, measure in (("accuracy above that of", AFTER), ("more samples right at the end than", SAMPLED))
    ],
    curves={"reward": "reward of samples", "length": "tokens of an answer"},
    seeds=3,
    chosen="""Tasks: ten of reasoning-gym, mostly at their easiest level, were sampled 96 times each. These two were most often
    right, save `products` and the easiest level of `chain_sum`, whose test problems are among the training problems. Learning
    rates: 3e-6 and 1e-5 for each method on chain_sum, seed 100; right samples at the end: grpo 0.12 and 0.23, online-dpo 0.10
    and 0.22, sppo 0.10 and 0.22, inpo 0.05 and 0.04. Nothing else of inpo was tried. All ran on one H200, up to eight at a
    time.""",
)

if __name__ == "__main__":
    main(CLAIM)
