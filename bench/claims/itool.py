"""iTool's claim: where imitation has saturated, trees over what still fails mend single arguments. Or is its gain imitation's?"""

from __future__ import annotations

from harness import Claim, Statement, Variant, main
from tool_calls import ACCURACY, BED, GAINED, IMITATION, LONG, MEASURES, ONLY_IMITATES, SAMPLED, SETTINGS, imitates_at

LR = 1e-4
EASY = 0.35
KNOBS = imitates_at(LR, easy=EASY, sft=IMITATION - EASY)
WHOLE = "itool on whole answers"
FEW = 300

CLAIM = Claim(
    name="itool",
    title="itool where imitation has been at work",
    about=f"""The paper says that imitation of calls saturates, with small errors in single arguments left, and that pairs from
    trees over the problems that still fail mend them.

    Here a small untrained model calls one of two functions with one to three arguments, `tfab,gc:fb7a3=` -> `f(a=3,b=7)`; a
    step of an answer ends with a comma. itool imitates solutions for {IMITATION:.0%} of the steps, the easier half of the
    problems first, and then searches trees for those that a first answer gets wrong. `{WHOLE}` compares whole answers to these.
    `sft` imitates all problems from the first step on, with a learning rate that falls to the last: it is shown a solution to
    every problem. Accuracy is greedy, over 600 held-out problems; `gained after imitation` is against the same run before its
    first pair. What the same last steps give when they imitate stands on a [page of its own](itool-imitation.md).""",
    variants={
        "sft": Variant("sft", settings=ONLY_IMITATES),
        WHOLE: Variant("itool", {**KNOBS, "rollout.depth": 1}),
        "itool": Variant("itool", KNOBS),
    },
    bed=BED,
    settings={**SETTINGS, "lr": LR},
    conditions={"new problems in every step": {}, f"{FEW} problems that come back": {"train_problems": FEW}},
    measures=MEASURES,
    statements=[
        Statement("itool", "accuracy gained after imitation, above", 0.0, GAINED),
        Statement("itool", "accuracy above that of", "sft", ACCURACY),
        Statement("itool", "accuracy on the longest calls above that of", "sft", LONG),
        Statement("itool", "more samples right at the end than", "sft", SAMPLED),
        Statement("itool", "accuracy above that of", WHOLE, ACCURACY),
    ],
    seeds=5,
    curves={"loss": "loss", "reward": "reward of answers searched for"},
    chosen="""On seed 100, before: the learning rate of pairs, 1e-4, 3e-4 and 1e-3 with itool itself, which ended at an accuracy
    of 0.41, 0.40 and 0.38, from 0.41 after imitation (3e-5, tried afterwards, 0.40). On seed 102, 340 steps of imitation left
    no call of three arguments right (0.43 to 0.39, pairs at 3e-4), so there are more of it here. The two stages of imitation
    keep about the proportion that they have by default.""",
)

if __name__ == "__main__":
    main(CLAIM)
