"""CAPO: tokens whose own step would lead out of a trust region, by a second-order model of it, do not learn."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.weight.curvature import TrustToken
from upslope.types import Paper

capo = grpo.derive(
    name="capo",
    paper=Paper(
        "Stabilizing Policy Gradients for Sample-Efficient Reinforcement Learning in LLM Reasoning", arxiv="2510.00819", year=2025
    ),
    differs="tokens whose own step is predicted to change the objective or the policy too much are left out; no KL",
    formula="L = mean_i (1/Σw) Σ_t -w min(r A, clip(r) A),   w = 1[|m_H| < τ_H, m_F < τ_F],   m_H = A v·u + A/2 [(v·u)² - uᵀFu],  "
    " m_F = (v·u)²/2,   u = lr A |h|² v,   v = e_a - π",
    use_when="a high learning rate or small batches make GRPO collapse",
    weight=TrustToken(),
    regularize=None,
    notes="The planned step is that of plain gradient ascent on the head, in closed form; the paper's variant with Adam's moments "
    "is not here, as moments stand outside the objective. The factors of one half are in the released code too. "
    "A step's own learning rate is a knob (weight.lr), not the schedule's. The bounds are the paper's for GRPO "
    "on a 7B model; hidden states of other models have other norms, so set weight.quantile (0.95), or the bounds from the "
    "quantiles of a calm run.",
)
