"""NGRPO's claim on test bed B1: where whole groups are wrong, GRPO stands still and NGRPO looks elsewhere."""

from __future__ import annotations

from beds import GoodArms, TableBed
from harness import Claim, Statement, Variant, average, final, main, steps_until

FOUND = "steps until a right answer has probability 0.5"

CLAIM = Claim(
    name="ngrpo",
    title="ngrpo where whole groups are wrong",
    about="""A group of wrong answers has no advantage under GRPO, so nothing is learned from it. NGRPO adds a virtual right sample,
    which gives all of them the same negative advantage: what was tried and wrong becomes less likely, and the policy looks
    elsewhere. Here the one right arm of each context starts at 0.002, while a few wrong arms hold most of the probability: of
    8 samples nearly all are wrong. The KL term of grpo is off. One update a
    step, so the clip plays no part.""",
    variants={
        "grpo": Variant("grpo", {"regularize.weight": 0.0}),
        "ngrpo": Variant("ngrpo"),
    },
    bed=TableBed(GoodArms(), known=0.002, spread=1.5),
    settings={"steps": 150, "lr": 0.1},
    measures={
        "final J": final("J"),
        "mean J": average("J"),
        FOUND: steps_until("success", 0.5),
        "mean entropy": average("exact_entropy"),
        "share of groups without signal in the reward": average("constant_groups"),
    },
    statements=[
        Statement("ngrpo", "final J above that of", "grpo", "final J"),
        Statement("ngrpo", "earlier at the right arm than", "grpo", FOUND, higher=False),
        Statement("ngrpo", "entropy above that of", "grpo", "mean entropy"),
    ],
    seeds=10,
    chosen="""lr 0.05 (seeds 100 to 103) and 0.1 (seeds 100 to 102) were tried. At 0.05 the final J was 0.05 for grpo and 0.47
    for ngrpo, and hardly a run had found the arm within 150 steps. On both trials the entropy was not above grpo's.""",
    fast=True,
)

if __name__ == "__main__":
    main(CLAIM)
