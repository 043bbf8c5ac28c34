"""How far answers in eight bits are from the policy: ``python bench/sampling_gap.py [--model smollm2] [--out FILE]``.

Questions are answered with ``--sampling-precision fp8``, and every token of the answers is scored by the policy itself. Told are
the differences of the log-probabilities, the Kullback-Leibler divergence of what was sampled from to the policy (by samples: the
mean of ``r - 1 - log r`` of the ratio of the two), and the share of tokens whose ratio `Truncated` would cut off at 2.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

QUESTIONS = (
    "What is 27 plus 58?", "Name three rivers in Africa.", "Why is the sky blue?", "Write a sentence about a dog.",
    "How many days are there in a year?", "What does a baker do?", "Translate 'good morning' into French.",
    "What is photosynthesis?",
)  # fmt: skip
COMMAND = "python bench/sampling_gap.py"


def measured(model: str, samples: int, tokens: int) -> dict[str, Any]:
    import torch

    from upslope.policies import load_language_model
    from upslope.rollout.engines.torch_engine import TorchEngine
    from upslope.rollout.text_rows import sampled_rows
    from upslope.runtime import seeding
    from upslope.types import Sampling

    policy, sampling = load_language_model(model, 0), Sampling(tokens)
    prompts = policy.encode_all(list(QUESTIONS))
    numbers = seeding.uniforms((len(prompts) * samples, tokens), 1)
    found = {}
    for precision in ("auto", "fp8"):
        done = TorchEngine(policy, precision=precision).generate(prompts, samples, sampling, numbers)
        rows = sampled_rows(policy, prompts, samples, done, sampling)
        with torch.no_grad():
            on = rows.sampled > 0
            log = (policy.evaluate(rows).logp - done.logp)[on]
        ratio = log.exp()
        found[precision] = {
            "tokens": int(on.sum()),
            "mean": float(log.abs().mean()),
            "worst": float(log.abs().max()),
            "divergence": float((ratio - 1 - log).mean()),
            "cut_off": float((ratio > 2).float().mean()),
            "ratio": float(ratio.mean()),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--samples", type=int, default=4, help="answers to each question")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    told = {"row": "sampling_gap", "command": COMMAND, "model": flags.model}
    told |= {"found": measured(flags.model, flags.samples, flags.tokens)}
    print(json.dumps(told, indent=1))
    if flags.out:
        flags.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
