"""MiniRL: the plain policy gradient, corrected for who really sampled."""

from upslope.methods.rlvr.reinforce import reinforce
from upslope.objective.ratio import TokenRatio
from upslope.objective.surrogate.masked import MaskedLikelihood
from upslope.types import Paper

minirl = reinforce.derive(
    name="minirl",
    paper=Paper("Stabilizing Reinforcement Learning with LLMs: Formulation and Practices", arxiv="2512.01374", year=2025),
    differs="weighted by the ratio to the policy that really sampled, engine included; a one-sided mask on the step's ratio",
    formula=r"L = mean_i Σ_t -M sg[min(π/μ, C)] A log π,   M = 0 where A > 0, r > 1.27 or A < 0, r < 0.8,   r = π/π_old,   C = 5",
    use_when="sampler and learner do not agree (other kernels, older weights), or a step makes several updates",
    ratio=TokenRatio(),
    surrogate=MaskedLikelihood(mask="one-side", importance="behavior", low=0.2, high=0.27, cap=5.0),
    notes="The structure was read in public accounts; the constants 0.2, 0.27 and C = 5 are recalled, not re-checked. The paper's "
    "third means, replaying the routing of an earlier pass in mixture-of-experts models, is minirl-r2.",
)
