"""TempSamp-R1's claim: with the annotated interval in every group it gets where GRPO stalls."""

from __future__ import annotations

from dataclasses import dataclass

from beds import Reward, TableBed
from harness import Claim, Statement, Variant, average, final, main, steps_until
from torch import Tensor

from upslope.methods import find

REACHED = "steps until the mean overlap is 0.7"
NO_KL = {"regularize.weight": 0.0}


@dataclass(frozen=True)
class Overlap(Reward):
    """Two tokens say when an interval begins and ends; paid is its intersection over union with the annotated one.

    Token v of the first position is moment v, of the second moment v + width - 1, so that the annotated interval is
    ``1, 1``: what the bed knows as the reference answer. An answer is right from an overlap of 0.7 on.
    """

    width: int = 3

    def mean(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        begin, end = tokens[:, 0], tokens[:, 1] + self.width - 1
        first, last = 1, self.width
        shared = (end.clamp_max(last) - begin.clamp_min(first) + 1).clamp_min(0)
        whole = (end - begin + 1).clamp_min(0) + (last - first + 1) - shared
        return (shared / whole.clamp_min(1)).float() * (end >= begin)

    def right(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        return self.mean(contexts, tokens) >= 0.7


RAW = find("tempsamp-r1").derive(name="tempsamp-r1 without bending", reward=None)

CLAIM = Claim(
    name="tempsamp-r1",
    title="tempsamp-r1 where samples hardly ever overlap",
    about="""In a large space of intervals samples rarely overlap the annotated one, and GRPO's groups earn nothing. TempSamp-R1
    puts the annotation into each group as one more sample. A perfect row among poor ones makes all samples look bad; bending the
    rewards is to repair that.

    Here an answer is two tokens of 32, begin and end; 3 of up to 34 moments are annotated, and the policy starts undecided over
    them with a few favourites. The reward is the overlap (intersection over union), J its exact mean. `without bending` joins the
    annotation but leaves the rewards; tempsamp-r1-anchor leaves them and gives the annotation 1.2 times the best sample's
    advantage. The KL term is off.""",
    variants={
        "grpo": Variant("grpo", NO_KL),
        "without bending": Variant(RAW, NO_KL),
        "tempsamp-r1-anchor": Variant("tempsamp-r1-anchor", NO_KL),
        "tempsamp-r1": Variant("tempsamp-r1", NO_KL),
    },
    bed=TableBed(Overlap(), positions=2, vocabulary=32, spread=2.0),
    settings={"steps": 150, "lr": 0.05},
    measures={
        "final mean overlap": final("J"),
        "mean overlap over the run": average("J"),
        REACHED: steps_until("J", 0.7),
        "final share of answers with an overlap of 0.7": final("success"),
        "final entropy": final("exact_entropy"),
    },
    statements=[
        Statement("tempsamp-r1", "final overlap above that of", "grpo", "final mean overlap"),
        Statement("tempsamp-r1", "earlier at a mean overlap of 0.7 than", "grpo", REACHED, higher=False),
        Statement("tempsamp-r1", "mean overlap over the run above that", "without bending", "mean overlap over the run"),
        Statement("tempsamp-r1-anchor", "final overlap above that of", "grpo", "final mean overlap"),
    ],
    seeds=10,
    chosen="""The first setting tried, on seeds 100 to 102; nothing was varied.""",
)

if __name__ == "__main__":
    main(CLAIM)
