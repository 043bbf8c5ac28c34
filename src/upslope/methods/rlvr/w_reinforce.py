"""Reinforcing right answers (PSR) and punishing wrong ones (NSR) apart, and the weighted sum of both (W-REINFORCE)."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage.signed import SignedReward
from upslope.objective.aggregate import TokenMean
from upslope.types import Paper

_PAPER = Paper("The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning", arxiv="2506.01347", year=2025)
_LOSS = r"L = (1/ΣT) Σ_i Σ_t -min(r A, clip(r, 1-ε, 1+ε) A)"

w_reinforce = grpo.derive(
    name="w-reinforce",
    paper=_PAPER,
    differs="right answers count 0.1 and wrong ones -1, without baseline or spread; mean over tokens, no KL",
    formula=_LOSS + r",   A_i = λ if right else -1,   λ = 0.1",
    use_when="several samples will be drawn at test time (pass@k matters) and the policy must not narrow while it learns",
    advantage=SignedReward(right=0.1, wrong=-1.0),
    aggregate=TokenMean(),
    regularize=None,
    notes="With advantage.right=1 it is REINFORCE on rewards of plus and minus one. Rewards between 0 and 1 are split at "
    "advantage.threshold.",
)

psr = grpo.derive(
    name="psr",
    paper=_PAPER,
    differs="learns from right answers only, without baseline or spread; mean over tokens, no KL",
    formula=_LOSS + r",   A_i = 1 if right else 0",
    use_when="only the single most likely answer matters and diversity may go; mostly the contrast to nsr",
    advantage=SignedReward(right=1.0, wrong=0.0),
    aggregate=TokenMean(),
    regularize=None,
)

nsr = grpo.derive(
    name="nsr",
    paper=_PAPER,
    differs="learns from wrong answers only, without baseline or spread; mean over tokens, no KL",
    formula=_LOSS + r",   A_i = 0 if right else -1",
    use_when="the policy already knows good answers and should stop giving bad ones without losing its diversity",
    advantage=SignedReward(right=0.0, wrong=-1.0),
    aggregate=TokenMean(),
    regularize=None,
    notes="Nothing says what is right: where right answers are very rare it only moves among wrong ones, and on long runs "
    "a policy that is never rewarded can drift.",
)
