"""Preferences over many rejected answers, of which those at the boundary count."""

from upslope.methods.preference.dpo import dpo
from upslope.objective.surrogate.boundary import BoundaryPreference
from upslope.types import Paper

dynamicpo = dpo.derive(
    name="dynamicpo",
    paper=Paper("DynamicPO: Dynamic Preference Optimization for Recommendation", arxiv="2605.00327", year=2026),
    differs="of many rejected answers only those count that the policy finds about as likely as the chosen one, each with a "
    "beta by how far it is from both sides",
    formula=r"L = -log σ((1/|B|) Σ_{b∈B} β_b [log π(y_w)/π_start(y_w) - log π(y_b)/π_start(y_b)]),   B = {b : π(y_b) ≥ π(y_w)},   "
    r"β_b = β (1 + ½ tanh((m₁ - m₂ - 2)/(|m₁| + |m₂|))),   m₁ = log π(y_w)/π(y_b),   m₂ = log π(y_b) - mean_easy log π",
    use_when="each prompt has several rejected answers, most of them easy to tell from the chosen one, as in recommendation",
    surrogate=BoundaryPreference(),
    notes="As in the released code, but for its k-means (used where no rejected answer is as likely as the chosen one): the "
    "best three clusters are computed, where scikit-learn's depend on a seed. Fewer than three rejected answers, where the "
    "released code fails, are clusters of one. β is 1 there and here. The method it improves on, a mean over all rejected "
    "answers (DMPO), is surrogate.negatives=all surrogate.adapt=0, or dpo with surrogate.beta=1.",
)
