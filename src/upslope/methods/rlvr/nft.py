"""NFT: supervised learning on right answers, and on wrong ones through the negative policy."""

from upslope.methods.rlvr.grpo import dr_grpo
from upslope.objective.advantage.success import SuccessRate
from upslope.objective.aggregate import ConstantSum
from upslope.objective.filter import DropConstantGroups
from upslope.objective.surrogate.negative_aware import NegativeAware
from upslope.types import Paper

nft = dr_grpo.derive(
    name="nft",
    paper=Paper("Bridging Supervised Learning and Reinforcement Learning in Math Reasoning", arxiv="2505.18116", year=2025),
    differs="maximum likelihood of right answers, and of wrong ones under the negative policy these imply; no clip; groups without "
    "signal are replaced",
    formula=r"L = (1/1000) Σ_i Σ_t (1-p) · ( right: -log r;  wrong: -log max_v((1 - p r)/(1 - p), 1) ),   p = share of right",
    use_when="rewards are right or wrong and you want a supervised loss that needs no clip",
    filter=DropConstantGroups(refill=True),
    advantage=SuccessRate(),
    surrogate=NegativeAware(),
    aggregate=ConstantSum(divisor=1000.0),
    notes="The task's weight 1 - p is that of the released training script; surrogate.weighting=odds gives GRPO's first update, "
    "with the population's spread. The loss is a sum, so its size grows with the batch; Adam does not see that, gradient clipping "
    "does. surrogate.negative=0 is rejection fine-tuning.",
)
