"""BAPO: clip bounds that open in every update until positive advantages supply their share."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.aggregate import TokenMean
from upslope.objective.surrogate.balanced import BalancedClip
from upslope.types import Paper

bapo = grpo.derive(
    name="bapo",
    paper=Paper(
        "BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy Optimization with Adaptive Clipping",
        arxiv="2510.18927",
        year=2025,
    ),
    differs="clip bounds open in every update until positive advantages supply their share; mean over tokens, no KL",
    formula=r"L = (1/ΣT) Σ_i Σ_t -min(r A, clip(r, c_lo, c_hi) A),   c raised from (0.6, 1.2) towards (0.9, 3) until "
    r"Σ_{A>0} π_μ |min(·)| ≥ 0.4 Σ π_μ |min(·)|",
    use_when="rollouts are reused for many updates or come late, and entropy falls because bad tokens dominate the loss",
    surrogate=BalancedClip(),
    aggregate=TokenMean(),
    regularize=None,
    notes="The loop and its constants were read in a public account of the paper; the project's page gives a target of 0.5. The "
    "released code moves the lower bound first, leaves out the sampling probability and asks for as much positive as negative: "
    "surrogate.first=low, surrogate.weighted=false, surrogate.target=0.5, with limits 0.8 and 2 and both steps 0.05. Under "
    "the paper's sum a higher lower bound makes negative tokens count more, though they lose their gradient; "
    "surrogate.contribution=gradient counts what still learns.",
)
