"""A GRPO step of SmolLM2-135M's size on a CPU, beside TRL: ``python bench/grpo_smollm2.py``.

The weights are random, in the model's shape: prompts then have exactly as many tokens as are wanted, and nothing else differs.
"""

from __future__ import annotations

from dataclasses import replace

from grpo_short import ROW as SHORT
from side_by_side import main
from sides import Row, Setting
from text_work import TextWork

TWO = Setting("2 threads", 2)
ROW: Row = replace(
    SHORT,
    name="grpo_smollm2",
    # Two threads only: with one as well, six processes of this size were more than 24 GB hold.
    ours=replace(SHORT.ours, settings=(TWO,)),
    peer=replace(SHORT.peer, settings=(TWO, replace(TWO, label="2 threads, our switches", borrowed=True))),
    work="one GRPO step: SmolLM2-135M's shape, all weights, 4 prompts of 64 tokens x 4 samples, 64 new tokens; random weights",
    given=TextWork(model="random", prompts=4, samples=4, prompt_tokens=64, max_tokens=64),
    window=1,
    near={"reward": 0.05},
    goal="at least 2 times TRL is wanted",
)

if __name__ == "__main__":
    main(ROW)
