"""The plain policy gradient and its leave-one-out form: what every other method here is a refinement of."""

from upslope.objective.advantage import GroupBaseline
from upslope.objective.aggregate import SequenceMeanTokenSum
from upslope.objective.ratio import NoRatio, TokenRatio
from upslope.objective.surrogate import LogLikelihood, Unclipped
from upslope.types import Method, Paper

reinforce = Method(
    name="reinforce",
    paper=Paper("Simple statistical gradient-following algorithms for connectionist reinforcement learning", year=1992),
    differs="the score function times reward minus the group's mean",
    formula=r"L = -(1/N) Σ_i A_i Σ_t log π(y_it),   A_i = R_i - mean_group R",
    use_when="each rollout is learned from once and the plainest gradient is wanted, as a yardstick for the rest",
    advantage=GroupBaseline(scale="none"),
    ratio=NoRatio(),
    surrogate=LogLikelihood(),
    aggregate=SequenceMeanTokenSum(),
    notes="The baseline is any that does not depend on the action: RawReward (zero) and MovingBaseline (running mean) are the "
    "other two here. With several updates a step the data are no longer the policy's own, and nothing corrects for it.",
)

rloo = reinforce.derive(
    name="rloo",
    paper=Paper("Back to Basics: Revisiting REINFORCE-Style Optimization for RLHF", arxiv="2402.14740", year=2024),
    differs="baseline of the siblings only, which is unbiased; token ratio without a clip",
    formula=r"L = -(1/N) Σ_i A_i Σ_t r_it,   A_i = R_i - mean of the other R_j of the group",
    use_when="each rollout is learned from once or twice and the estimate should be unbiased; groups of four to eight are enough",
    advantage=GroupBaseline(scale="none", leave_one_out=True),
    ratio=TokenRatio(),
    surrogate=Unclipped(),
    notes="A group of one has no siblings and is dropped (libraries take the reward itself: advantage.singleton=raw). For rewards "
    "of a reward model the paper takes the distance to the start into the reward: "
    "--set 'advantage=RegularizedReward(beta=0.05, leave_one_out=True)'.",
)
