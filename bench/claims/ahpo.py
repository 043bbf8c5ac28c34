"""AHPO beside HPT: easy problems that are reinforced, impossible ones that are imitated until they are possible."""

from __future__ import annotations

from half_known import BED, DISTINCT, EASY_ACCURACY, HARD_ACCURACY, SETTINGS, HalfKnown, gated
from harness import Statement, Variant, extra, main

CLAIM = HalfKnown(
    name="ahpo",
    title="ahpo and hpt on easy and impossible problems",
    about="""Both papers say that imitation should come in where the policy cannot help itself, and only there. The model can
    reverse two letters and was never shown five; problems of both lengths are mixed, each with a demonstration. Reinforcement
    alone has nothing to learn from on the long ones. AHPO adds imitation to a group without a right answer and keeps its samples;
    HPT drops them. `always` imitates every group beside its samples, which should make its answers more alike. `never` is AHPO
    without imitation.""",
    variants={
        "never": Variant("ahpo", {"data.gate.needed": 0}),
        "sft": Variant("sft"),
        "always": Variant("ahpo", {"data.gate.needed": 9}),
        "hpt": Variant("hpt"),
        "ahpo": Variant("ahpo"),
    },
    bed=BED,
    settings=SETTINGS,
    measures={
        EASY_ACCURACY: extra("easy"),
        HARD_ACCURACY: extra("hard"),
        "final share of gated groups": gated,
        DISTINCT: extra("distinct"),
    },
    statements=[
        Statement("never", "accuracy on hard problems below", 0.05, HARD_ACCURACY, higher=False),
        Statement("ahpo", "accuracy on hard problems above that without imitation,", "never", HARD_ACCURACY),
        Statement("hpt", "accuracy on hard problems above that without imitation,", "never", HARD_ACCURACY),
        Statement("ahpo", "accuracy on hard problems at most 0.1 below that of", "hpt", HARD_ACCURACY, margin=0.1),
        Statement("ahpo", "accuracy on easy problems at most 0.05 below that of", "never", EASY_ACCURACY, margin=0.05),
        Statement("ahpo", "more distinct answers than with imitation", "always", DISTINCT),
    ],
    seeds=5,
    chosen="""On seed 100 hpt and luffy were looked at with 150 steps, another learning rate and a start that was sure of its
    mistakes (luffy then solved no hard problem). Steps, rate and a less trained start were then set without trying. They are
    estimates: with them nothing was run to the end.""",
    curves={"reward": "reward of samples", "gated_groups": "share of gated groups"},
)

if __name__ == "__main__":
    main(CLAIM)
