"""TTRL's claim: the group's own vote is label enough to get better."""

from __future__ import annotations

from harness import Claim, Statement, TextBed, Variant, average, extra, final, main
from voting import ACCURACY, GAIN, SETTINGS, accuracy, gain, sixteen_samples

CLAIM = Claim(
    name="ttrl",
    title="ttrl learns from its own votes",
    about="""The paper says that the most common of many answers is right often enough to learn from, with no label. A small model
    that gets half of the problems right by its likeliest answer goes on without labels: of 32 samples each the vote decides, 16
    learn. grpo learns from the true labels in the same setting. One task has one right answer to each problem (reverse), the other
    many (pairs), where the vote can be right and wrong in many ways.""",
    variants={"grpo": Variant("grpo", {"regularize.weight": 0.001}), "ttrl": Variant("ttrl")},
    bed=TextBed("reverse", after=sixteen_samples),
    settings=SETTINGS,
    conditions={"one right answer": {}, "several right answers": {"bed": {"task": "pairs"}}},
    measures={
        ACCURACY: accuracy,
        GAIN: gain,
        "mean label accuracy": average("label_accuracy"),
        "final label accuracy": final("label_accuracy"),
        "final distinct answers of a group": final("distinct_answers"),
        "final entropy": final("entropy"),
        "pass@16": extra("pass@16"),
    },
    statements=[
        Statement("ttrl", "gain in accuracy above", 0.0, GAIN),
        Statement("ttrl", "accuracy at most 0.1 below that with labels,", "grpo", ACCURACY, margin=0.1),
        Statement("ttrl", "label accuracy above", 0.5, "mean label accuracy"),
    ],
    seeds=5,
    chosen="""A temperature of 0.8, 32 votes and a learning rate of 1e-4 come from a smaller run (reverse:length=2, one seed): at a
    temperature of 1 and 2.5e-4 the vote is soon wrong and the policy collapses to one answer. Here nothing was varied.""",
    curves={"reward": "reward of samples, by the true labels", "label_accuracy": "label accuracy", "entropy": "entropy"},
)

if __name__ == "__main__":
    main(CLAIM)
