"""What `upslope data describe` advises, tried on a simulated robot: imitation, staying near the data, or off-policy learning."""

from __future__ import annotations

from control_bed import SMALL
from data_beds import REPLAY, TrainedExpertBed, advised
from harness import Claim, Statement, Variant, extra, main

RETURN = "normalised return"
DATA = {"random": "random", "mixed": "mixed:expert=0.2", "replay": REPLAY, "noisy": "noisy:eps=0.2", "expert": "expert"}
DECISIONS = 20_000

CLAIM = Claim(
    name="recommend-hopper",
    title="what the description of data advises, on five kinds of data of Hopper",
    about="""`upslope data describe` advises by the findings of A Dataset Perspective on Offline RL: imitation from a TQ of 0.8 on,
    otherwise off-policy learning from a SACo of 0.8 on, between them methods that stay near the data. On a gridworld that held
    (`saco-tq`). Here the world is Hopper-v5. sac learns online for 20,000 steps; its experience is the replay data, which SACo is
    measured against, and its last policy the expert of the other kinds, of 20,000 steps each. Of the methods that are advised,
    bc stands for imitation, td3-bc for staying near the data and td3 for off-policy learning; none of them acts. Returns are
    normalised: random actions are 0 and the expert is 1. If the advice is good, the advised method is the best of the three, or
    near to it.""",
    variants={
        "bc": Variant("bc", {"policy.hidden": (64, 64)}),
        "td3-bc": Variant("td3-bc", SMALL),
        "td3": Variant("td3", SMALL, {"offline_steps": 8}),
    },
    bed=TrainedExpertBed(
        "gym:Hopper-v5",
        data="random",
        data_steps=DECISIONS,
        episodes=20,
        explorer="sac",
        explorer_knobs=tuple(SMALL.items()),
        explorer_settings=(("updates_per_step", DECISIONS), ("minibatch", 128), ("lr", 1e-3)),
    ),
    settings={"steps": 8, "updates_per_step": 1000, "lr": 1e-3, "minibatch": 128, "eval_problems": 5, "eval_every": 4},
    conditions={name: {"bed": {"data": recipe}} for name, recipe in DATA.items()},
    measures={
        RETURN: extra("normalised"),
        "TQ of the data": extra("TQ"),
        "SACo of the data": extra("SACo"),
        "advice: imitation": advised("imitation"),
        "advice: near the data": advised("near the data"),
        "advice: off-policy": advised("off-policy"),
        "advice: offline-to-online": advised("offline-to-online"),
    },
    statements=[
        Statement("bc", "return above that of", "td3", RETURN, conditions=("expert", "noisy")),
        Statement("bc", "return at most 0.1 below that of", "td3-bc", RETURN, margin=0.1, conditions=("expert", "noisy")),
        Statement("td3-bc", "return above that of", "bc", RETURN, conditions=("mixed", "replay")),
        Statement("td3", "return above that of", "bc", RETURN, conditions=("random", "replay")),
        Statement("td3", "return at most 0.1 below that of", "td3-bc", RETURN, margin=0.1, conditions=("random", "replay")),
    ],
    seeds=5,
    curves={"return": "return"},
    chosen="""nothing was tried: networks and learning rates are those of the other claims in control.""",
)

if __name__ == "__main__":
    main(CLAIM)
