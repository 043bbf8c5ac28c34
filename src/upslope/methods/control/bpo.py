"""BPO: the ratio regressed to the solution of the bounded problem, with a value and a median function."""

from upslope.methods.control.ppo import ppo
from upslope.objective.models.median import MedianFunction
from upslope.objective.models.value import ValueFunction
from upslope.objective.surrogate.fitted import FittedRatio
from upslope.types import Paper

bpo = ppo.derive(
    name="bpo",
    paper=Paper("Bounded Ratio Reinforcement Learning", arxiv="2604.18578", year=2026),
    differs="the ratio is drawn to a target by the side of a learned median, from outside the trust region too; raw advantages",
    formula=r"L = mean_t [ |Q - V| |r - τ| + ½ (V - Q)² + ½ (softplus(Q - u) - ½ (Q - u)) ],   τ = 1-ε + 2ε σ((Q - u)/λ),   "
    r"Q = A + V from GAE",
    use_when="a step makes many passes and PPO's ratios drift out of its clip, which does not bring them back",
    shape=None,
    surrogate=FittedRatio(low=0.3, high=0.3, temperature=1e-3),
    models={"value": ValueFunction(weight=1.0), "median": MedianFunction(weight=0.5)},
    on={
        "text": {
            "advantage.gamma": 1.0,
            "advantage.lam": 1.0,
            "models.value.lr_scale": 10.0,
            "models.median.lr_scale": 10.0,
        },
        "control-discrete": {"regularize.weight": 0.01},
    },
    notes="V and u are the ones being fitted, in every minibatch anew, as in the released code. Those before the step's first "
    "update are advantage=CentredGAE() with surrogate=BoundedRatio(): on a first try clearly slower, as early returns all lie on "
    "one side of them. The code's squared error has no half, so models.value.weight is 1 for its 0.5. The paper clips gradients "
    "at 1 (--grad-clip 1). The median's loss is a logistic one of softness 1: where returns spread less than that (a reward of 0 "
    "or 1), it gives nearly the mean. What text tasks change is taken from ppo's, not from the paper.",
)
