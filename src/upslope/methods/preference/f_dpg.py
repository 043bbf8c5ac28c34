"""Policy gradients towards a target distribution, by the divergence of one's choice."""

from upslope.methods.rlvr.reinforce import reinforce
from upslope.objective.advantage.target import TargetDivergence
from upslope.objective.ratio.answer import AnswerRatio
from upslope.objective.surrogate import Unclipped
from upslope.types import Paper

f_dpg = reinforce.derive(
    name="f-dpg",
    family="preference",
    paper=Paper("Aligning Language Models with Preferences through f-divergence Minimization", arxiv="2302.08215", year=2023),
    differs="the reward is how far the answer's probability is from that under a target distribution, in any f-divergence; the "
    "target stays fixed and the policy may arrive",
    formula=r"L = (1/N) Σ_i sg[π(y_i)/q(y_i) (f'(t_i) - mean f')] log π(y_i),   t = π(y) Z / P(y),   P(y) = π_start(y) e^{R(y)/β}",
    use_when="it is known which distribution of answers is wanted, not only which answers: a constraint that must hold, a share "
    "that a feature should have, or diversity that must not be lost on the way to reward",
    advantage=TargetDivergence(),
    ratio=AnswerRatio(),
    surrogate=Unclipped(),
    notes="advantage.target says where the policy should end: RewardTarget(beta), the optimum of KL-regularized reinforcement "
    "learning; PointwiseTarget(above), the start given that the reward exceeds a number; MomentTarget(features, moments), the "
    "distribution nearest to the start in which parts of the reward have these means (GDC, with advantage.divergence=forward-kl). "
    "Six divergences: forward-kl, reverse-kl, js (the released code's), tv, forward-chi2, reverse-chi2. With reverse-kl and "
    "a RewardTarget it is REINFORCE on R - β log π/π_start. Each prompt has a normalizer Z of its own, a running mean that begins "
    "with the step's own answers: with few samples per prompt it is biased, and a prompt that never earned anything teaches "
    "nothing yet (PointwiseTarget). Samples are the policy's own; the released code's proposal, which lags until the policy is "
    "nearer to the target, is not built. t is that of the step's beginning, so further updates of a step only have their ratio. "
    "reverse-chi2 punishes what a PointwiseTarget rules out by e^50: give it a RewardTarget.",
)
