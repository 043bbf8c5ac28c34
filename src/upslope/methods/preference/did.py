"""Preferences that carry what a target differs in from the start."""

from upslope.methods.preference.dpo import online_dpo
from upslope.objective.advantage.information import InformationPair
from upslope.types import Paper

did = online_dpo.derive(
    name="did",
    paper=Paper(
        "Differential Information Distribution: A Bayesian Perspective on Direct Preference Optimization",
        arxiv="2505.23761",
        year=2025,
    ),
    differs="the worse answer is rejected as often as a target's differential information asks for, not always, so that the loss "
    "has that target as its minimum; and a step reports the entropy of what the policy says beyond its start",
    formula=r"y_l ~ π_l ∝ μ (π_start/π*)^β = μ exp(-R/scale),   π* ∝ π_start exp(R/(β scale)),   L = -log σ(β [log "
    r"π(y_w)/π_start(y_w) - log π(y_l)/π_start(y_l)]),   H(q), q ∝ π/π_start",
    use_when="the policy should settle at a known distance from its start, or it should be seen whether it sharpens (the "
    "entropy falls) or spreads (both likelihoods fall)",
    advantage=InformationPair(),
    notes="A theory of what DPO learns, made a method. Its theorem draws chosen answers from the start and rejected ones from "
    "π_l; only their odds matter, so the policy's own samples do, and the two that are furthest apart, with the chance of who "
    "is rejected as an expectation. advantage.rejected=drawn draws the rejected answer of the whole group instead. The target of "
    "rewards and scale = 0.5 (a target of temperature 0.05 with β = 0.1) are ours. The entropy is estimated from the group's "
    "samples (32 in the paper, --samples-per-task) among those of the same length; how the paper matches lengths is inferred. "
    "Its projected variant (DPO-PG), which takes from the gradient what would lower the chosen answers' likelihood, is not "
    "built: it needs a second gradient of all parameters in each update, and an update has one.",
)
