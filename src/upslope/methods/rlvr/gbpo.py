"""GBPO: the ratio regressed to the solution of the bounded problem, in groups."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage.median import MedianTarget
from upslope.objective.surrogate.bounded import BoundedRatio
from upslope.types import Paper

gbpo = grpo.derive(
    name="gbpo",
    paper=Paper("Bounded Ratio Reinforcement Learning", arxiv="2604.18578", year=2026),
    differs="the ratio is drawn to a target by the side of the group's median, from outside the trust region too; no KL",
    formula=r"L = mean_i (1/T_i) Σ_t |A| |r - τ|,   τ = 1-ε + 2ε σ(Ã/λ),   A = (R - mean)/(std + 1e-6),   "
    r"Ã = (R - median)/(std + 1e-6)",
    use_when="rollouts are used for many updates and the ratio drifts out of GRPO's clip, which does not bring it back",
    advantage=MedianTarget(),
    surrogate=BoundedRatio(low=0.2, high=0.2, temperature=1e-4),
    regularize=None,
    notes="In a group of right and wrong answers the majority's target is 1, so only the minority moves. The paper uses 5 to 10 "
    "passes and bounds of 0.2 to 0.3. The released scripts add a KL to the starting policy (k3, weight 0.001) and average over all "
    "tokens of the update instead of over answers: regularize=ReferenceKL(weight=0.001), aggregate=TokenMean.",
)
