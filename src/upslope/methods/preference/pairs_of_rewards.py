"""Policy gradients over pairs of scored answers: clipped near the policy that sampled them, or regressed whoever did."""

from upslope.methods.rlvr.reinforce import rloo
from upslope.objective.advantage import RawReward
from upslope.objective.advantage.regularized import RegularizedReward
from upslope.objective.aggregate import GroupMean, SequenceMeanTokenMean
from upslope.objective.ratio.references import AgainstReferences
from upslope.objective.surrogate.pairwise import ContrastiveSquare, PairwiseClip
from upslope.types import Paper

p3o = rloo.derive(
    name="p3o",
    family="preference",
    paper=Paper(
        "Pairwise Proximal Policy Optimization: Harnessing Relative Feedback for LLM Alignment", arxiv="2310.00212", year=2023
    ),
    differs="only differences of reward between two answers count, with the KL inside the reward; ratios of whole answers, clipped",
    formula=r"L = -½ Σ_{i≠j} min(w ρ_i, w clip(ρ_i, 1-ε, 1+ε)),   w = sg[(r_i - r_j) ρ_j],   r = R - β log π_old(y)/π_start(y)",
    use_when="rewards of different prompts are not on one scale, and rollouts are learned from more than once",
    advantage=RegularizedReward(),
    surrogate=PairwiseClip(),
    aggregate=SequenceMeanTokenMean(),
    notes="The gradient is the paper's, both forms of the clip are inferred: surrogate.joint=true clips the ratio of ratios (V2). "
    "The paper samples two answers (--samples-per-task 2); with more, all pairs of a group are averaged. At the first update, "
    "with β = 0, it is RLOO.",
)

copg = rloo.derive(
    name="copg",
    family="preference",
    paper=Paper(
        "Contrastive Policy Gradient: Aligning LLMs on sequence-level scores in a supervised-friendly fashion",
        arxiv="2406.19185",
        year=2024,
    ),
    differs="a square in every pair draws the difference of log-ratios to the difference of rewards: right for answers of anybody, "
    "without importance weights",
    formula=r"L = mean_{i<j} (R_i - R_j - β [log π(y_i)/π_start(y_i) - log π(y_j)/π_start(y_j)])² / (2β)",
    use_when="answers are old or others', or the same rollouts are to be learned from many times",
    advantage=RawReward(),
    ratio=AgainstReferences(),
    surrogate=ContrastiveSquare(),
    aggregate=GroupMean(),
    notes="Inferred from the paper's description; its identities are tested. The gradient is twice that of RLOO on the regularized "
    "reward. β is 0.01 to 0.1 in the paper, with the reward on its own scale.",
)
