"""OTR's claim: fine-tuning on demonstrations forgets less when it learns from the policy's own tokens."""

from __future__ import annotations

from harness import Statement, TextBed, Variant, extra, main
from two_skills import KNOWN, MODEL, SETTINGS, SHARE, TAUGHT, TwoSkills, both_skills

CLAIM = TwoSkills(
    name="otr",
    title="otr forgets less of what it is not taught",
    about=f"""Supervised fine-tuning pulls up every demonstrated token, the unlikely ones most, and what the model knew besides
    suffers. OTR samples tokens at each place and learns from those: a token that the model never says is left alone. The paper
    claims that it generalises better outside of what it is fine-tuned on.

    Here a small model has been trained on two skills, {SHARE} rows in 64 of `{TAUGHT}` and the rest of `{KNOWN}`, so that it knows
    the second well and the first a little. It is fine-tuned on solutions of the first alone. Accuracies are of greedy answers to
    held-out problems. `temperature 1` samples as the policy itself would: the mean gradient is then that of sft times 1.1 times the
    token's probability; `no penalty` pays nothing for other tokens instead of -0.1.""",
    variants={
        "sft": Variant("sft"),
        "sft, a third of the learning rate": Variant("sft", settings={"lr": 1e-4}),
        "otr": Variant("otr"),
        "otr, temperature 1": Variant("otr", {"surrogate.temperature": 1.0}),
        "otr, no penalty": Variant("otr", {"surrogate.wrong": 0.0}),
    },
    bed=TextBed(TAUGHT, MODEL, after=both_skills),
    settings=SETTINGS,
    measures={
        "accuracy in the taught skill": lambda result: result.after,
        "accuracy in the other skill": extra("known"),
        "KL to the start on the other skill": extra("kl known"),
        "KL to the start on the taught skill": extra("kl taught"),
    },
    statements=[
        Statement(
            "otr", "accuracy in the taught skill at most 0.05 below that of", "sft", "accuracy in the taught skill", margin=0.05
        ),
        Statement("otr", "accuracy in the other skill above that of", "sft", "accuracy in the other skill"),
        Statement(
            "otr", "accuracy in the other skill above that of", "sft, a third of the learning rate", "accuracy in the other skill"
        ),
        Statement("otr", "KL on the other skill below that of", "sft", "KL to the start on the other skill", higher=False),
    ],
    curves={"loss": "loss", "kl_start": "movement on the demonstrations"},
    seeds=5,
    chosen="""The model was made with 3, 6 and 8 rows of the taught skill in a batch, and 6 kept, as it then knows a little of
    it (0.27 of the answers right). Steps and learning rates were the first tried, on seed 100; nothing was varied then, but
    for the variant without a penalty, which was added.""",
)

if __name__ == "__main__":
    main(CLAIM)
