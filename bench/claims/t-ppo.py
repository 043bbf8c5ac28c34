"""T-PPO's claim: the same reward after fewer decoding steps, where a few answers are many times longer than the rest."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from harness import Claim, Measure, Result, Statement, TextBed, Variant, average, final, main

from upslope.policies import load_language_model
from upslope.rollout.text import teacher_rows
from upslope.runtime.seeding import numpy_generator
from upslope.tasks import load_task
from upslope.tasks.text import Problem

LIMIT = 64
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
LEVEL = 0.6


def pays(prompts: list[str], responses: list[str], answers: list[str]) -> list[float]:
    """The reward: the share of digits in what was written; nothing for nothing."""
    return [sum(map(str.isdigit, text)) / len(text) if text else 0.0 for text in responses]


def babbler(folder: Path, steps: int = 150) -> str:
    """A small model that writes random characters: most answers are short, a few reach the limit (a Pareto tail)."""
    torch.set_num_threads(1)
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
    policy.save(folder)
    return str(folder)


def decoding_until(level: float, over: int = 5) -> Measure:
    """Decoding steps (the longest of each step, added up) until the reward, averaged over some steps, is at ``level``."""

    def measure(result: Result) -> float:
        reward = np.convolve(result.curve("reward"), np.ones(over) / over, mode="valid")
        decoded = np.cumsum(result.curve("longest"))[over - 1 :]
        reached = np.flatnonzero(reward >= level)
        return float(decoded[reached[0]] if len(reached) else decoded[-1])

    return measure


def claim(model: str) -> Claim:
    return Claim(
        name="t-ppo",
        title="t-ppo learns in fewer decoding steps",
        about=f"""The paper says that waiting for the longest answers leaves most of the machine idle, and that learning from answers
        window by window reaches the same reward in less time. Time is counted in decoding steps, the longest answer or window of
        each step added up: what a machine that decodes all rows side by side would wait for. A small language model first
        learns to write random characters with a Pareto tail of lengths (about 6 tokens in the middle, the limit is {LIMIT}); every
        seed starts from that model. Then it is paid the share of digits in its answer, about a quarter at the start. An answer may
        take 4 windows of {LIMIT // 4} tokens. t-ppo makes 3 times as many steps as ppo, which still decode fewer tokens in a row.""",
        variants={
            "ppo": Variant("ppo", {}, {"steps": 40}),
            "t-ppo": Variant("t-ppo", {}, {"steps": 120}),
        },
        bed=TextBed("reverse", model, reward=f"{Path(__file__).resolve()}:pays"),
        settings={
            "lr": 5e-4, "max_tokens": LIMIT, "tasks_per_step": 32, "samples_per_task": 2, "schedule": "constant", "warmup": 0,
            "eval_problems": 4, "checkpoint_every": 1000, "watch_kl": False,
        },  # fmt: skip
        measures={
            f"decoding steps until reward {LEVEL}": decoding_until(LEVEL),
            "final reward": final("reward"),
            "decoding steps of a step": average("longest"),
            "tokens of a step": average("tokens"),
        },
        statements=[
            Statement(
                "t-ppo", "fewer decoding steps to the same reward than", "ppo", f"decoding steps until reward {LEVEL}", higher=False
            ),
            Statement("t-ppo", "final reward at most 0.05 below that of", "ppo", "final reward", margin=0.05),
            Statement("t-ppo", "fewer decoding steps in a step than", "ppo", "decoding steps of a step", higher=False),
        ],
        curves={"reward": "reward of the answers that ended", "longest": "decoding steps"},
        seeds=5,
        chosen="",
    )


CLAIM = claim("a small model made by the script")

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(claim(babbler(Path(scratch) / "model")))
