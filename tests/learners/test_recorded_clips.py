"""What a run's recordings say of the clip: 1 where the upper bound holds a token, -1 where the lower one does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import upslope as up

LETTERS = "def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> list[tuple[float, float, float]]:
    """Ratio, advantage and clip of every token of a run whose later updates leave the trust region."""
    folder: Path = tmp_path_factory.mktemp("clips")
    (folder / "data.jsonl").write_text("".join(json.dumps({"prompt": f"{i}+{i}=", "answer": str(2 * i)}) + "\n" for i in range(20)))
    (folder / "letters.py").write_text(LETTERS)
    run = up.train(
        "grpo", task=str(folder / "data.jsonl"), reward=f"{folder / 'letters.py'}:score", out=folder / "run", record="all",
        model="tiny:layers=1,width=32", steps=2, tasks_per_step=6, samples_per_task=4, passes=4, lr=1e-2, warmup=0, max_tokens=4,
        warm_start=0.0, eval_problems=4,
    )  # fmt: skip
    found = []
    for step in (1, 2):
        for group in run.folder.read_rollouts(step)["groups"]:
            for sample in group["samples"]:
                found += zip(sample["ratio"], sample["advantages"], sample["clipped"], strict=True)
    return [(ratio, advantage, clip) for ratio, advantage, clip in found if clip is not None]


def test_the_sign_says_which_bound_holds(tokens):
    upper = [(ratio, advantage) for ratio, advantage, clip in tokens if clip == 1]
    lower = [(ratio, advantage) for ratio, advantage, clip in tokens if clip == -1]
    assert upper and lower, "without both kinds the signs could be mixed up unseen"
    assert all(ratio > 1.2 - 1e-4 and advantage > 0 for ratio, advantage in upper)
    assert all(ratio < 0.8 + 1e-4 and advantage < 0 for ratio, advantage in lower)


def test_no_other_token_is_clipped(tokens):
    free = [(ratio, advantage) for ratio, advantage, clip in tokens if clip == 0]
    assert free
    for ratio, advantage in free:
        assert not (advantage > 0 and ratio > 1.2 + 1e-4) and not (advantage < 0 and ratio < 0.8 - 1e-4)
