"""T-PPO: learn from answers while they are still being written."""

from upslope.methods.control.ppo import ppo
from upslope.objective.advantage.extended import ExtendedGAE
from upslope.objective.models.finished import FinishedValue
from upslope.objective.surrogate import PessimisticClip
from upslope.objective.weight.window import ThisWindow
from upslope.rollout.windows import Windows
from upslope.types import Paper

t_ppo = ppo.derive(
    name="t-ppo",
    family="rlvr",
    paper=Paper("Truncated Proximal Policy Optimization", arxiv="2506.15050", year=2025),
    differs="answers are written and learned from window by window; the value function learns from finished answers alone",
    formula=r"L = mean over this window's tokens of -min(r A, clip(r, 1-0.2, 1+0.28) A)  +  mean over finished answers' tokens of "
    r"c_v ½ (V - R)²,   A from GAE with V(s_l) = V(s_(l-1)) behind an unfinished answer",
    use_when="a few answers are many times longer than the rest, so that plain sampling waits for them with most rows idle",
    rollout=Windows(windows=4, least=8),
    advantage=ExtendedGAE(gamma=1.0, lam=0.95, value_lam=1.0),
    surrogate=PessimisticClip(low=0.2, high=0.28, dual=10.0),
    weight=ThisWindow(),
    models={"value": FinishedValue(weight=0.5, clip=0.5, lr_scale=10.0)},
    on=None,
    notes="How many windows, the policy's lambda and the value clip are ours: public summaries of the paper do not print them. "
    "Where an answer fits into rollout.least tokens nothing is ever paused: ppo with a wider clip and decoupled lambdas. "
    "The answers to one task end at different times, so nothing that compares within groups goes with rollout=Windows. The reward "
    "and length of a step are of the answers that ended in it. A token's log-probability under the policy before the step is "
    "computed anew; as only this window's tokens are learned from, that is also the policy that wrote them.",
)
