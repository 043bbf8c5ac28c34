"""PPO: the pessimistic clip with a value function, for control and for language models."""

import math

from upslope.objective.advantage import GAE
from upslope.objective.aggregate import TokenMean
from upslope.objective.models.value import ValueFunction
from upslope.objective.ratio import TokenRatio
from upslope.objective.regularize import EntropyBonus
from upslope.objective.shape import Whiten
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Method, Paper

ppo = Method(
    name="ppo",
    family="control",
    paper=Paper("Proximal Policy Optimization Algorithms", arxiv="1707.06347", year=2017),
    parent="reinforce",
    differs="clipped ratio, so that data serve several updates; advantages from a value function (GAE), whitened",
    formula=r"L = mean_t [ -min(r A, clip(r, 1-ε, 1+ε) A) + c_v ½ (V - R)² - c_e H ],   A from GAE(γ, λ), whitened per update",
    use_when="a value function can be learned: control, and text where credit must be given token by token",
    advantage=GAE(gamma=0.99, lam=0.95),
    shape=Whiten(),
    ratio=TokenRatio(),
    surrogate=PessimisticClip(low=0.2, high=0.2, dual=math.inf),
    aggregate=TokenMean(),
    regularize=EntropyBonus(weight=0.0),
    models={"value": ValueFunction(weight=0.5)},
    on={
        # Language models: the reward comes at the end, so nothing is discounted; the head starts from nothing and learns faster.
        "text": {
            "advantage.gamma": 1.0,
            "advantage.lam": 1.0,
            "surrogate.dual": 3.0,
            "models.value.clip": 0.5,
            "models.value.lr_scale": 10.0,
        },
        # A discrete action is easily settled too early.
        "control-discrete": {"regularize.weight": 0.01},
    },
    notes="A KL reward (StepKL), its adaptive weight (AdaptiveKL) and an early end of a step's passes (TargetKL) are parts to "
    "add; the default has none.",
)
