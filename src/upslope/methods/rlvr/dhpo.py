"""DHPO, with both mixings: a token and a sequence ratio, each in its own trust region, in one clipped surrogate."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.ratio import ConstantMix, EntropyMix, Hybrid, SequenceRatio, TokenRatio
from upslope.objective.surrogate import Bounds, BranchClip
from upslope.types import Paper

_PAPER = Paper("Orchestrating Tokens and Sequences: Dynamic Hybrid Policy Optimization for RLVR", arxiv="2601.05607", year=2026)

dhpo = grpo.derive(
    name="dhpo",
    paper=_PAPER,
    differs="a convex mix of token and sequence ratio, each clipped in its own region before mixing; no KL",
    formula=r"L = mean_i (1/T_i) Σ_t -min(u A, ū A),   u = w r + (1-w) s,   ū = w clip(r) + (1-w) clip(s),   w = ½",
    use_when="rollouts are reused and neither a token's nor an answer's ratio alone is to be trusted",
    ratio=Hybrid(TokenRatio(), SequenceRatio(), mix=ConstantMix(0.5)),
    surrogate=BranchClip(token=Bounds(0.2, 0.28), sequence=Bounds(3e-4, 4e-4), form="single_min"),
    regularize=None,
    notes="The structure was read in the abstract and a public account of equations 8 to 11. The clip values were not found: ours "
    "are the two parents' own. The nesting of the minimum is our reading (surrogate.form=per_branch_min is the other). On short "
    "answers set surrogate.sequence near surrogate.token / sqrt(T), as for gspo.",
)

dhpo_entropy = dhpo.derive(
    name="dhpo-entropy",
    differs="the mix follows each token's entropy: uncertain tokens use their own ratio, confident ones the sequence's",
    formula=r"L as dhpo, with w_it = sg[ (H_it - min H) / (max H - min H) ] over the answer",
    use_when="as for dhpo, with answers in which certain and uncertain tokens differ much",
    ratio=Hybrid(TokenRatio(), SequenceRatio(), mix=EntropyMix()),
    notes="Over which set the entropy is normalised, and in which direction, is our reading: ratio.mix.over, ratio.mix.direction.",
)
