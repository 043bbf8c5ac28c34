"""SEED-GRPO's claim: where a share of the tasks has a random verifier, smaller steps on scattered answers help."""

from __future__ import annotations

from beds import Corrupted, GoodArms, TableBed
from harness import Claim, Statement, Variant, average, final, main

CLAIM = Claim(
    name="seed-grpo",
    title="seed-grpo with corrupted tasks",
    about="""The paper says that a policy should move less on tasks whose answers scatter, since its knowledge, or the task
    itself, is uncertain there. Here the verifier of one task in five is a coin; contexts share features, so that what is learned
    there disturbs the others. J is the true expected reward over all tasks. Answers are classed by the arm they name.""",
    variants={
        "dr-grpo": Variant("dr-grpo"),
        "seed-grpo": Variant("seed-grpo"),
        "seed-grpo, as recalled": Variant("seed-grpo", {"shape.alpha": 0.02, "shape.form": "linear"}),
    },
    bed=TableBed(Corrupted(inner=GoodArms(), every=5), contexts=20, known=0.1, features=16),
    settings={"steps": 150, "lr": 0.03, "tasks_per_step": 20},
    measures={
        "final J": final("J"),
        "mean J": average("J"),
        "final entropy": final("exact_entropy"),
    },
    statements=[
        Statement("seed-grpo", "final J above that of", "dr-grpo", "final J"),
        Statement("seed-grpo", "mean J above that of", "dr-grpo", "mean J"),
        Statement("seed-grpo, as recalled", "final J above that of", "dr-grpo", "final J"),
    ],
    conditions={"one task in five corrupted": {}, "none corrupted": {"bed": {"reward": GoodArms()}}},
    seeds=10,
    chosen="""One setting was tried, on seeds 100 to 102, with a further variant (alpha 2), which was no better and was
    dropped for time.""",
)

if __name__ == "__main__":
    main(CLAIM)
