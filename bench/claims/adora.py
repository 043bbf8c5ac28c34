"""ADORA's claim on a bed with an optional scratch pad: length and accuracy grow faster than under GRPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from beds import Reward, TableBed
from harness import Claim, Statement, Variant, average, final, main, steps_until
from torch import Tensor


@dataclass(frozen=True)
class ScratchPad(Reward):
    """An answer that was thought about for at least ``needed`` tokens is right with probability ``high``, another with ``low``.

    Context c needs 1 + c modulo 4 tokens where ``helps``; else every answer is right with probability ``low``.
    """

    high: float = 0.6
    low: float = 0.3
    helps: bool = True

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        thought = (tokens != 0).sum(1)
        enough = (thought > contexts % 4) if self.helps else torch.zeros_like(thought, dtype=torch.bool)
        return torch.where(enough, self.high, self.low)

    def __call__(self, contexts: Tensor, tokens: Tensor, uniforms: Tensor) -> Tensor:
        return (uniforms < self.mean(contexts, tokens)).float()

    def right(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return self.mean(contexts, tokens) >= self.high - 1e-6


HALF = "steps until J is 0.5"

CLAIM = Claim(
    name="adora",
    title="adora where thinking longer helps, and where it does not",
    about="""The paper says that weighting groups by whether their right answers are longer than their wrong ones makes length and
    accuracy grow faster. Here an answer is a scratch pad that a stop token ends: with enough tokens on it the answer is right
    with probability 0.6, else with 0.3, so that short answers are right by luck often enough to mislead single groups. In the
    second condition length changes nothing. The KL term of both is off.""",
    variants={
        "grpo": Variant("grpo", {"regularize.weight": 0.0}),
        "adora": Variant("adora", {"regularize.weight": 0.0}),
        "amplifying": Variant("adora", {"regularize.weight": 0.0, "shape.useful": 2.0, "shape.useless": 1.0}),
    },
    bed=TableBed(ScratchPad(), vocabulary=3, positions=7, stop=True),
    settings={"steps": 80, "lr": 0.03},
    conditions={"length helps": {}, "length changes nothing": {"bed": {"reward": ScratchPad(helps=False)}}},
    measures={
        "mean J": average("J"),
        "final J": final("J"),
        HALF: steps_until("J", 0.5),
        "final length": final("exact_length"),
        "mean length": average("exact_length"),
    },
    statements=[
        Statement("adora", "length above that of", "grpo", "mean length"),
        Statement("adora", "mean J above that of", "grpo", "mean J", conditions=("length helps",)),
        Statement("adora", "sooner at J 0.5 than", "grpo", HALF, higher=False, conditions=("length helps",)),
        Statement("amplifying", "mean J above that of", "grpo", "mean J", conditions=("length helps",)),
    ],
    seeds=10,
    chosen="""Long enough answers right with probability 0.9 (seeds 100 to 102) came first: nearly every group shows that
    length helps, and of the four statements on J and length all but the one on steps held, by about a quarter of what
    0.6 gave on the same seeds. 0.6 was taken because it leaves more to sort out.""",
    curves={"J": "expected reward (exact)", "exact_length": "length (exact)"},
)

if __name__ == "__main__":
    main(CLAIM)
