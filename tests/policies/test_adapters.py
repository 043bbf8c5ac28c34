"""Adapters learn at their default learning rate, and alike at every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import upslope as up
from upslope.runtime.default_lr import default_lr

torch.set_num_threads(1)


def rewards(folder: Path, name: str, **settings: Any) -> list[float]:
    """The reward of each step of a short run that is paid for small letters: about a quarter at the start."""
    problems, reward = folder / "problems.jsonl", folder / "letters.py"
    problems.write_text("".join(f'{{"prompt": "word {number}", "answer": "a"}}\n' for number in range(50)))
    reward.write_text("def score(prompts, responses, answers):\n    return [sum(map(str.islower, r)) / 8 for r in responses]\n")
    given: dict[str, Any] = {"model": "tiny:layers=1", "warm_start": 0.0, "max_tokens": 8, "steps": 25, "warmup": 2}
    given |= {"tasks_per_step": 8, "eval_problems": 2, "record": "none", "watch_kl": False}
    run = up.train("grpo", str(problems), reward=f"{reward}:score", out=folder / name, **given, **settings)
    return [record["reward"] for record in run.metrics]


def gain(found: list[float]) -> float:
    return (sum(found[-4:]) - sum(found[:4])) / 4


@pytest.mark.slow
@pytest.mark.learns(seconds=15)
def test_adapters_learn_at_their_default_learning_rate_and_not_at_that_of_full_training(tmp_path: Path) -> None:
    """Seen: 0.16 at rank 8, 0.14 at rank 32, 0.01 at the learning rate of full training; all weights at that rate won 0.18."""
    usual = {rank: gain(rewards(tmp_path, f"rank-{rank}", lora=rank)) for rank in (8, 32)}
    slow = gain(rewards(tmp_path, "slow", lora=8, lr=default_lr("tiny", 0)))
    assert min(usual.values()) > 0.1 and slow < min(usual.values()) / 3
    assert max(usual.values()) < 1.6 * min(usual.values()), "the rank hardly matters: that is what the default is for"
