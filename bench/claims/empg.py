"""EMPG's claim: a confident mistake is unlearned faster."""

from __future__ import annotations

from beds import TableBed
from harness import Claim, Statement, Variant, average, final, main
from table_extras import ConfidentMistake

NO_KL = {"regularize.weight": 0.0}

CLAIM = Claim(
    name="empg",
    title="empg unlearns confident mistakes faster",
    about="""The paper says that the policy gradient is small where the policy is confident, so that confident mistakes are hardly
    corrected, and that scaling each step's advantage by its confidence repairs that. Here an answer has two steps of one token
    each. The first starts with a probability of 0.9 on a wrong token, the second is undecided between eight; each right step
    pays a half. Adam would hide the size of a gradient, so its epsilon is large (0.01).

    `no bonus` is empg without the bonus for clear next steps.""",
    variants={
        "grpo": Variant("grpo", NO_KL),
        "no bonus": Variant("empg", {**NO_KL, "shape.bonus": 0.0}),
        "empg": Variant("empg", NO_KL),
    },
    bed=TableBed(ConfidentMistake(), vocabulary=8, positions=2, items=2, filler=(0,), filler_known=0.9),
    settings={"steps": 150, "lr": 0.1, "adam_eps": 1e-2},
    measures={
        "mean probability of the mistake": average("mistake"),
        "final probability of the mistake": final("mistake"),
        "mean J": average("J"),
        "final J": final("J"),
    },
    statements=[
        Statement("empg", "mean probability of the mistake below that of", "grpo", "mean probability of the mistake", higher=False),
        Statement(
            "no bonus", "mean probability of the mistake below that of", "grpo", "mean probability of the mistake", higher=False
        ),
        Statement("empg", "mean J above that of", "grpo", "mean J"),
        Statement("empg", "final J above that of", "grpo", "final J"),
    ],
    seeds=10,
    chosen="""The setting is the first that was written down. It was run once on seeds 100 and 101 to see that it works, and
    nothing was changed after that.""",
)

if __name__ == "__main__":
    main(CLAIM)
