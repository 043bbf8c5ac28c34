"""PACS: the policy learns to predict its verifier."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage import RawReward
from upslope.objective.surrogate.supervised import LabelFromRatio
from upslope.types import Paper

pacs = grpo.derive(
    name="pacs",
    paper=Paper("Implicit Actor Critic Coupling via a Supervised Learning Framework for RLVR", arxiv="2509.02522", year=2025),
    differs="cross-entropy between the reward and a score made of the policy's own log-ratio, compared within the group; no KL",
    formula=r"L = mean_i w_i BCE(σ(ψ_i), R_i),   ψ_i = r̂_i - mean of the siblings' r̂,   r̂_i = β Σ_t (log π - log π_old)",
    use_when="rewards are right or wrong, rollouts are used for several updates, and learning should end once they are told apart",
    advantage=RawReward(),
    surrogate=LabelFromRatio(),
    regularize=None,
    notes="Rewards must lie between 0 and 1. The paper's code sums the log-ratio over padding too and relies on its being zero; "
    "here only sampled tokens count. Where scores are standardised (surrogate.centre=standard) it differentiates their spread as "
    "well: surrogate.spread_gradient. A group is one term of the loss, so slices hold whole groups.",
)
