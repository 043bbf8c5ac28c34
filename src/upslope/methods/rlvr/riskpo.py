"""RiskPO: the risk of bundles of questions instead of the mean of answers."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage.bundles import BundleRisk
from upslope.objective.aggregate import TokenMean
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Paper

riskpo = grpo.derive(
    name="riskpo",
    paper=Paper(
        "RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training", arxiv="2510.00911", year=2025
    ),
    differs="scores of bundles of five questions against tracked quantiles, the lower tail weighing most; token mean, no KL",
    formula=r"L = (1/ΣT) Σ_i Σ_t -min(r A, clip(r, 1-ε, 1+ε) A),   A = (w c + g) / ((1+w) std S std R),   "
    r"g = ((S-q₁)₊ - (S-q₂)₊ + q₁ - q₂) / (0.9-0.2),   c = -(q₁-S)₊ / 0.2",
    use_when="tasks range from solved to hopeless and the mean is carried by the solved ones, or entropy collapses early",
    advantage=BundleRisk(),
    surrogate=PessimisticClip(low=0.2, high=0.2, dual=3.0),
    aggregate=TokenMean(),
    regularize=None,
    notes="Clip, dual clip and mean over tokens are those the released scripts leave at their library's defaults. As there, A is "
    "nowhere above zero: what lies above the upper quantile gets zero, all else is pushed away (advantage.shifted=false lifts "
    "that; another released script uses it, with credit=sum-mean and high=0.8). A bundle whose papers all score the same divides "
    "by 1, not by 1e-6 (ours), and one short of questions is scaled up (ours). Bundles are drawn, not taken in order.",
)
