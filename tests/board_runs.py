"""Runs for the board's browser tests: real ones, small enough to train in seconds, and many made of one."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import upslope as up
from upslope.run import Watcher

SMALL: dict[str, Any] = {
    "model": "tiny:layers=1,width=32", "warm_start": 0.0, "tasks_per_step": 4, "samples_per_task": 4, "updates_per_step": 2,
    "eval_problems": 20, "eval_every": 3, "lr": 3e-3, "warmup": 0, "max_tokens": 8,
}  # fmt: skip
"""Two updates a step and a large learning rate: ratios leave one and some decisions clip."""
HOSTILE = [
    "<img src=x onerror=alert(1)>", "<script>alert(2)</script>", "\u202egnirts desrever", "javascript:alert(3)", "a\nb\tc",
    "</span><b>bold",
]  # fmt: skip


REWARD = """
def score(prompts, responses, answers):
    digits = [float(sum(letter.isdigit() for letter in text)) for text in responses]
    long = [len(text) / 8 for text in responses]
    return {"reward": [one + other for one, other in zip(digits, long)], "digits": digits, "long": long}
"""
"""Pays every answer differently, so that an untrained model learns from the first step on."""


def small_runs(root: Path) -> Path:
    """Two methods with two seeds each, one in a folder of its own, and a cart with a pole."""
    root.mkdir(parents=True)
    reward = root.parent / "reward.py"
    reward.write_text(REWARD)
    for method in ("grpo", "dhpo"):
        for seed in (0, 1):
            up.train(
                method, "reverse:length=2", out=root / f"{method}-{seed}", steps=9, seed=seed, reward=f"{reward}:score", **SMALL
            )
    up.train("dhpo", "sort", out=root / "sorting" / "dhpo-sort-0", steps=3, record="all", **SMALL)
    up.train(
        "ppo", "gym:CartPole-v1", out=root / "cartpole-0", steps=4, envs=2, horizon=64, passes=2, eval_every=2, eval_problems=3
    )
    return root


def slow_run(folder: Path, steps: int, pause: Any) -> None:
    """Trains while somebody watches; ``pause`` is called after every step."""

    class Slow(Watcher):
        def stepped(self, step: int, metrics: Any) -> None:
            pause()

    up.train("grpo", "reverse:length=2", out=folder, steps=steps, watcher=Slow(), **SMALL)


def make_hostile(run: Path) -> None:
    """Puts into a run's last recorded step what a model might write to break out of the page."""
    last = sorted((run / "rollouts").glob("step-*.json.gz"))[-1]
    record = read_step(last)
    group = record["groups"][0]
    group["prompt"], group["answer"] = HOSTILE[0], HOSTILE[1]
    sample = group["samples"][0]
    length = len(HOSTILE)
    sample.update(
        pieces=HOSTILE, response="".join(HOSTILE), ids=list(range(length)), sampled=[1, 1, 1, 0, 1, 1], turn=[0, 0, 0, 1, 2, 2]
    )
    for key in ("logp", "entropy", "ratio", "advantages", "weight", "clipped"):
        sample[key] = ([-0.5, 0.25, 1.0] * length)[:length]
    last.write_bytes(gzip.compress(json.dumps(record).encode()))


def read_step(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return record


def many_runs(root: Path, like: Path, count: int) -> Path:
    """Copies of a run's plan, numbers and result, each with its own seed and score."""
    plan, metrics, summary = ((like / name).read_text() for name in ("run.toml", "metrics.jsonl", "summary.json"))
    for number in range(count):
        folder = root / f"batch-{number // 50}" / f"run-{number:03}"
        folder.mkdir(parents=True)
        (folder / "run.toml").write_text(plan.replace("seed = 0", f"seed = {number}"))
        (folder / "metrics.jsonl").write_text(metrics)
        score = {"seed": number, "score_after": (number * 37 % count) / count}
        (folder / "summary.json").write_text(json.dumps(json.loads(summary) | score))
    return root


def copy_run(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to, ignore=shutil.ignore_patterns("checkpoints")))


@contextmanager
def board(root: Path, *flags: str, port: int = 0) -> Iterator[str]:
    """The real command on a folder of runs; gives its address."""
    command = [sys.executable, "-m", "upslope", "board", str(root), "--port", str(port), *flags]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=root.parent
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), f"the board did not start: {address!r}"
        yield address
    finally:
        server.terminate()
        server.wait(timeout=10)
