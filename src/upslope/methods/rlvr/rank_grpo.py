"""Rank-GRPO."""

from upslope.methods.rlvr.grpo import gspo
from upslope.objective.advantage.rank import RankBaseline
from upslope.objective.ratio.segment import SegmentRatio
from upslope.objective.regularize import ReferenceKL
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Paper

rank_grpo = gspo.derive(
    name="rank-grpo",
    paper=Paper(
        "Rank-GRPO: Training LLM-based Conversational Recommender Systems with Reinforcement Learning",
        arxiv="2510.20150",
        year=2025,
    ),
    differs="the item of a list is the unit: each rank has its own reward to go, its own baseline and its own ratio; a small KL",
    formula=r"L = mean_i (1/T_i) Σ_k Σ_{t in k} -min(s_k A_k, clip(s_k, 1-0.06, 1+0.08) A_k) + β k3,   s_k = exp(mean over the "
    r"item of log π - log π_old),   A_k from r_k = Σ_{j>=k} hit_j / log2(j+1)",
    use_when="the answer is a ranked list whose items can be judged one by one",
    advantage=RankBaseline(),
    ratio=SegmentRatio(),
    surrogate=PessimisticClip(low=0.06, high=0.08),
    regularize=ReferenceKL(weight=1e-3, estimator="k3"),
    notes="Items are what the task's separator ends, and hits come from the task (Scores.items); on other tasks every item gets "
    "the answer's reward. In the released code the end of a list behind a closing separator counts as overflow and gets no bonus, "
    "and its ratio enters its item's mean: advantage.ending=within, ratio.ending=within. Its gradient is that of the item's mean "
    "itself, ratio.gradient=segment: the same as here while an item's tokens share an advantage, another where the list's end "
    "stands within an item. Its option not to divide by the spread is advantage.scale=none. The mean over answers of the mean "
    "over tokens is GSPO's; the released trainer leaves that to its library's default. A task that pays items pays a value "
    "function twice, by item and by list.",
)
