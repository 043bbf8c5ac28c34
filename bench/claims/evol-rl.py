"""EVOL-RL's claim: rewarding what is new keeps a vote from making all answers alike."""

from __future__ import annotations

from harness import Statement, TextBed, Variant, average, extra, final, main
from voting import MODEL, PAIRS, SETTINGS, Pairing, sixteen_samples

CHARACTERS = {"reward.1.embedding": "characters"}

CLAIM = Pairing(
    name="evol-rl",
    title="evol-rl keeps its answers apart",
    about="""The paper says that learning from a vote alone narrows the answers until nothing is left to vote on, and that paying
    more for what others do not say keeps entropy and pass@k up. Here every problem has several right answers: two numbers with a
    given sum; about half of what the model says at the start is right. Both learn without labels from 32 votes, of which 16
    learn. Answers are five characters and are compared by them.
    `novelty alone` is ttrl with the reward of evol-rl, without its wider clip and its entropy bonus.""",
    variants={
        "ttrl": Variant("ttrl"),
        "novelty alone": Variant("evol-rl", {**CHARACTERS, "surrogate.high": 0.2, "regularize.1.weight": 0.0}),
        "evol-rl": Variant("evol-rl", CHARACTERS),
    },
    bed=TextBed(PAIRS, MODEL, after=sixteen_samples),
    settings={**SETTINGS, "warm_start": 0.0},
    measures={
        "mean label accuracy": average("label_accuracy"),
        "final entropy": final("entropy"),
        "final distinct answers of a group": final("distinct_answers"),
        "pass@1": extra("pass@1"),
        "pass@16": extra("pass@16"),
        "distinct right answers of 16": extra("distinct"),
    },
    statements=[
        Statement("evol-rl", "entropy above that of", "ttrl", "final entropy"),
        Statement("evol-rl", "more distinct right answers than", "ttrl", "distinct right answers of 16"),
        Statement("evol-rl", "pass@16 above that of", "ttrl", "pass@16"),
        Statement("novelty alone", "more distinct right answers than", "ttrl", "distinct right answers of 16"),
    ],
    seeds=5,
    chosen="""The setting is that of ttrl. Nothing was varied, and nothing was run to the end.""",
    curves={"reward": "reward of samples, by the true labels", "label_accuracy": "label accuracy", "entropy": "entropy"},
)

if __name__ == "__main__":
    main(CLAIM)
