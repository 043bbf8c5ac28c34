"""HAPO's objective against DAPO's: more entropy at equal reward."""

from __future__ import annotations

from beds import Lock, TableBed
from harness import Claim, Statement, Variant, average, final, main

CLAIM = Claim(
    name="hapo",
    title="hapo's objective against dapo's",
    about="""HAPO lets uncertain tokens rise and confident ones fall further and holds confident tokens back near the old
    policy; the paper claims that the entropy stays higher than DAPO's at the same reward. Its sampling part is not in this
    comparison. The answer has three tokens that matter among three that do not, of which two are boilerplate.""",
    variants={"dapo": Variant("dapo"), "hapo": Variant("hapo")},
    bed=TableBed(Lock(free=(0, 2, 4)), positions=6, vocabulary=16, known=0.3, filler=(0, 2), filler_known=0.95),
    settings={"steps": 40, "lr": 0.1, "passes": 4},
    measures={
        "final J": final("J"),
        "mean J": average("J"),
        "mean entropy": average("exact_entropy"),
        "final entropy": final("exact_entropy"),
    },
    statements=[
        Statement("hapo", "entropy above that of", "dapo", "mean entropy"),
        Statement("hapo", "final J at most 0.02 below that of", "dapo", "final J", margin=0.02),
    ],
    seeds=8,
    chosen="Set beforehand; looked at once on seeds 100 and 101.",
    fast=True,
)

if __name__ == "__main__":
    main(CLAIM)
