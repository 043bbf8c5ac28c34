"""DAPO's claim on test bed B1: a wider upper clip keeps the entropy up and finds a rare good arm earlier."""

from __future__ import annotations

from beds import GoodArms, TableBed
from harness import Claim, Statement, Variant, average, final, main, steps_until

NO_KL = {"regularize.weight": 0.0}

CLAIM = Claim(
    name="dapo",
    title="dapo's wider upper clip and a rare good arm",
    about="""The paper says that the upper clip of GRPO holds back unlikely tokens: from a probability of 0.01, an upper bound of
    1.2 allows 0.012. A wider upper bound lets them grow, which keeps the entropy higher. Here every context has one arm that pays
    1 and starts at a hundredth, and in one condition a decoy that pays half. The clip acts only where a rollout is used for several
    updates.

    `clip-higher` is grpo with the upper bound of dapo alone; dapo also replaces groups without signal, so it samples more.""",
    variants={
        "grpo": Variant("grpo", NO_KL),
        "clip-higher": Variant("grpo", {**NO_KL, "surrogate.high": 0.28}),
        "dapo": Variant("dapo"),
    },
    bed=TableBed(GoodArms(decoy=0.5), known=0.01),
    settings={"steps": 80, "lr": 0.1, "passes": 4},
    conditions={"a decoy pays half": {}, "no decoy": {"bed": {"reward": GoodArms()}}},
    measures={
        "final J": final("J"),
        "steps until a right answer has probability 0.5": steps_until("success", 0.5),
        "mean entropy": average("exact_entropy"),
        "clip fraction": average("clip_fraction"),
    },
    statements=[
        Statement("clip-higher", "entropy above that of", "grpo", "mean entropy"),
        Statement(
            "clip-higher", "earlier at the rare arm than", "grpo", "steps until a right answer has probability 0.5", higher=False
        ),
        Statement("dapo", "entropy above that of", "grpo", "mean entropy"),
        Statement("dapo", "earlier at the rare arm than", "grpo", "steps until a right answer has probability 0.5", higher=False),
        Statement("dapo", "final J above that of", "grpo", "final J"),
    ],
    seeds=10,
    chosen="""with the decoy, these pairs of lr and passes were tried: 0.05 and 4 on seeds 100 to 103; 0.05 and 8, 0.1 and 4,
    0.1 and 8, 0.2 and 8 on seeds 100 to 102. Entropy was lower with the wider clip in all of them; 0.1 and 4 was taken as the
    cheapest in which the clip acts. The condition without a decoy was added unseen, in case the decoy is what the wider clip
    runs to.""",
)

if __name__ == "__main__":
    main(CLAIM)
