"""BNPO: the reward's normaliser follows how hard the tasks of the batch are."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage.beta import BetaNormalised
from upslope.objective.aggregate import SequenceMeanTokenSum
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Paper

bnpo = grpo.derive(
    name="bnpo",
    paper=Paper("BNPO: Beta Normalization Policy Optimization", arxiv="2506.02864", year=2025),
    differs="divides by a Beta density refitted each step instead of the group's spread; sum over tokens, wider clip, no KL",
    formula=r"L = mean_i Σ_t -min(r A, clip(r, 1-0.2, 1+0.28) A),   A_i = (R_i - p) / Beta(p; α, β),   α, β fitted to the success "
    r"rates p of the batch",
    use_when="the success rates of the tasks differ widely or shift during training, and the gradient is noisy: the step's own "
    "spread of rates sets how much easy and hard tasks weigh",
    advantage=BetaNormalised(),
    surrogate=PessimisticClip(low=0.2, high=0.28, dual=10.0),
    aggregate=SequenceMeanTokenSum(),
    regularize=None,
    notes="The density's sharpness is bounded along the fitted ratio of alpha to beta (ours: equal success rates in all groups "
    "would fit a point mass). A group of one has no siblings and gets zero; the released code takes p = 0 for it. Rewards outside "
    "advantage.lowest and advantage.highest count as the nearer end. With several rewards, advantage.by_component=true normalises "
    "each by itself, as in the paper's decomposition. The loss that libraries call 'bnpo' is another thing: a mean over tokens.",
)
