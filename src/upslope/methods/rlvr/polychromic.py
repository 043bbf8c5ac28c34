"""Poly-PPO: answers earn as a set, by reward and diversity."""

from upslope.methods.control.ppo import ppo
from upslope.objective.advantage import GAE
from upslope.objective.advantage.polychromic import PolychromicAdvantage
from upslope.objective.models.value import ValueFunction
from upslope.objective.regularize.behavior import BehaviorKL
from upslope.objective.surrogate import PessimisticClip
from upslope.rollout.vine import Vine
from upslope.types import Paper

polychromic = ppo.derive(
    name="polychromic",
    family="rlvr",
    paper=Paper("Polychromic Objectives for Reinforcement Learning", arxiv="2509.25424", year=2025),
    differs="continuations branch from states along an answer and share the advantage of sets, scored by reward times diversity",
    formula=r"L as ppo, with A_i = mean over sets S ∋ i of [ f(S) - mean f ] on the first W tokens behind the branch,   "
    r"f(S) = (mean R) · (answer classes / n),   GAE elsewhere",
    use_when="several answers to a task are right and should stay so: pass@k matters, or later training must still explore",
    rollout=Vine(points=2),
    advantage=PolychromicAdvantage(n=4, sets=4, window=5, combine="product", base=GAE(gamma=1.0, lam=1.0)),
    surrogate=PessimisticClip(low=0.2, high=0.2, dual=3.0),
    regularize=BehaviorKL(weight=0.01),
    models={"value": ValueFunction(weight=0.5, clip=0.5, lr_scale=10.0)},
    on=None,
    notes="Branches per state are --samples-per-task; there is one first answer to each problem, and branching begins at its "
    "beginning. With all branches of a state in one set (samples_per_task no larger than n) their advantage is zero: take more. "
    "Diversity is the number of different answers by the task's own classes. The weight of the KL to the sampling policy is ours. "
    "Another replication adds diversity instead of multiplying (advantage.combine=sum). Set advantages and GAE are whitened "
    "together, as ppo does.",
)
