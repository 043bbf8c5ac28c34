"""Drafts beside no drafts, on a CPU: ``python bench/speculation.py`` (SmolLM2-135M; seven minutes on one core).

Both sides are ours, in one process and in turns, on one thread, by the processor's time: other processes on the machine count for
less so. With more threads it is the clock's time. ``--costs`` measures the table in `upslope.rollout.decode.speculation` instead,
and prints it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import torch

from upslope.policies import LanguageModel, load_language_model
from upslope.rollout.decode.draw import draw_tokens
from upslope.rollout.decode.speculation import POSITIONS, Drafting, PassCosts, Speculate
from upslope.rollout.decode.speculative_stepper import SpeculativeStepper
from upslope.rollout.decode.stepper import Prompts
from upslope.rollout.decode.weights import Weights
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.runtime.seeding import uniforms
from upslope.types import Sampling

RESULTS = Path(__file__).parent / "results"
TOKENS, ROUNDS = 64, 3
ASKED = (
    "What is the capital of France?",
    "Write the numbers from one to twenty as words.",
    "List five fruits, and say of each what colour it is.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
    "Write a Python function that adds two numbers, and one that multiplies them.",
    "Tell a short story about a cat that wants to see the sea.",
)


def now() -> float:
    """What a side's time is measured by."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def beside(policy: LanguageModel, prompts: Sequence[list[int]], n: int, heat: float, speculate: Speculate) -> dict[str, Any]:
    """The time of some answers without drafts over that with drafts, prompt by prompt."""
    sampling, numbers, ratios, drafted, accepted, same = Sampling(TOKENS, temperature=heat), uniforms((n, TOKENS), 1), [], 0, 0, 0
    for prompt in prompts:
        sides: dict[Speculate, list[float]] = {"off": [], speculate: []}
        said: dict[Speculate, torch.Tensor] = {}
        for _ in range(ROUNDS):
            for side, took in sides.items():
                engine = TorchEngine(policy, side)
                began = now()
                said[side] = engine.generate([prompt], n, sampling, numbers).tokens
                took.append(now() - began)
                drafted, accepted = drafted + engine.drafts.drafted, accepted + engine.drafts.accepted
        ratios.append(min(sides["off"]) / min(sides[speculate]))
        same += torch.equal(*said.values())
        print(f"  {ratios[-1]:.2f}", flush=True)
    return {
        "speculate": speculate, "samples": n, "temperature": heat, "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(each, 2) for each in ratios], "same_answers": same, "prompts": len(prompts),
        "drafts_accepted": round(accepted / drafted, 3) if drafted else None,
    }  # fmt: skip


def costs(policy: LanguageModel) -> list[float]:
    """Of a pass over several positions of one row, and the draws there, as multiples of that over one."""
    assert policy.body is not None
    weights, most = Weights(policy.body, 256, policy.compute_dtype), POSITIONS[-1]
    stepper = SpeculativeStepper(weights, 1, 200, Drafting(most, 1, PassCosts(0, 1, 1, (1, 2), (1, 1))))
    stepper.begin(Prompts(weights, [tuple(range(5, 45))]))
    stepper.slots.ended[:] = False
    took: dict[int, list[float]] = {count: [] for count in POSITIONS}

    def one(count: int) -> None:
        ids = torch.arange(count).view(1, -1) + 100
        draw_tokens(stepper._read(ids, 60 + torch.arange(count).view(1, -1)), Sampling(TOKENS), torch.full((count,), 0.5))

    with torch.no_grad():
        for _ in range(9):
            for count, each in took.items():
                one(count)  # of this size
                began = now()
                for _ in range(2):
                    one(count)
                each.append(now() - began)
    single = statistics.median(took[1])
    return [round(statistics.median(each) / single, 2) for each in took.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--costs", action="store_true", help="what passes over several positions cost, printed and not written")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    policy = load_language_model("smollm2", 0)
    if given.costs:
        print(POSITIONS, costs(policy))
        return
    prompts, loop = [policy.encode(text) for text in ASKED], policy.tokenizer(" one two three four" * 6)["input_ids"]
    cases: tuple[tuple[str, list[list[int]], int, float, Speculate], ...] = (
        ("single answers, greedy", prompts, 1, 0.0, "auto"),
        ("single answers, temperature 1", prompts[1:5], 1, 1.0, "auto"),
        ("a text that repeats itself, greedy", [loop], 1, 0.0, "auto"),
        ("groups of 8, temperature 1", prompts[2:3], 8, 1.0, 8),
    )
    found = {}
    for name, texts, n, heat, speculate in cases:
        print(name)
        found[name] = beside(policy, texts, n, heat, speculate)
    row = "speculation" + (f"_{given.threads}" if given.threads > 1 else "")
    command = "python bench/speculation.py" + (f" --threads {given.threads}" if given.threads > 1 else "")
    told = {
        "row": row, "command": command, "date": time.strftime("%Y-%m-%d"), "tokens": TOKENS,
        "threads": given.threads, "machine": machine.describe(), "found": found,
    }  # fmt: skip
    (RESULTS / f"{row}.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
