"""SAFE's claim on a table: a policy that games its reward is called back before what is wanted falls off a cliff."""

from __future__ import annotations

from beds import TableBed
from harness import Claim, Statement, Variant, drawdown, final, main
from table_cliff import Cliff

from upslope.methods import find
from upslope.objective.reward import StepKL

FALL, END = "fall of what is wanted", "final J"

CLAIM = Claim(
    name="safe",
    title="safe on a reward that can be gamed",
    about="""The paper says that a pessimistic value and a KL penalty above a moving threshold give fewer crashes of the reward
    than PPO with a fixed KL. Here each of 8 tokens that is token 1 is paid, and what is wanted, J, is the same up to 5 of them
    and nothing beyond: who maximises what is paid falls off the cliff. The fall is how far J ends up below its best, at the
    deepest.

    `ppo-kl` pays for its distance to the start with the usual weight of 0.05. `safe` has the paper's penalty weight of 0.1,
    `safe-strong` one of 1, and `safe-detached` is the released code's, whose penalty has no gradient. All make 2 passes.""",
    variants={
        "ppo": Variant("ppo"),
        "ppo-kl": Variant(find("ppo").derive(reward=StepKL(weight=0.05))),
        "safe": Variant("safe"),
        "safe-strong": Variant("safe", {"regularize.1.weight": 1.0}),
        "safe-detached": Variant("safe", {"regularize.1.detached": True}),
    },
    bed=TableBed(Cliff(edge=5), vocabulary=8, positions=8),
    settings={"steps": 150, "lr": 0.03, "passes": 2, "watch_kl": True},
    measures={
        END: final("J"),
        FALL: drawdown("J"),
        "paid at the end": final("paid"),
        "answers over the edge": final("over"),
        "KL to the start": lambda result: float(result.curve("kl_start")[-10:].mean()),
    },
    statements=[
        Statement("safe", "a smaller fall than", "ppo", FALL, higher=False),
        Statement("safe", "a smaller fall than", "ppo-kl", FALL, higher=False),
        Statement("safe-strong", "a smaller fall than", "ppo-kl", FALL, higher=False),
        Statement("safe-strong", "final J above that of", "ppo-kl", END),
        Statement("safe-detached", "a smaller fall than", "ppo", FALL, higher=False),
    ],
    seeds=6,
    chosen="""This bed and these settings are the first that were tried, on seed 100, where `safe` fell from 0.39 to 0.18,
    `ppo-kl` from 0.39 to 0.32, `safe-strong` not at all and the others to 0; `safe-strong` was added there. A KL weight of 0.1
    kept PPO at 0.32 without a fall.""",
    curves={"J": "what is wanted (J)", "paid": "what is paid"},
)

if __name__ == "__main__":
    main(CLAIM)
