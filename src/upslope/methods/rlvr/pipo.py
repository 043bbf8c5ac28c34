"""PIPO."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage.attribution import Attribution
from upslope.objective.aggregate import SequenceMeanTokenMean
from upslope.objective.data.previous import PreviousStep
from upslope.objective.ratio import TokenRatio
from upslope.objective.surrogate.previous import PreviousClip
from upslope.objective.terms import Term
from upslope.types import Paper

pipo = grpo.derive(
    name="pipo",
    paper=Paper("Policy Improvement Reinforcement Learning", arxiv="2604.00860", year=2026),
    differs="each step first repeats the update on the last step's rows, forwards if the reward has risen since, a little "
    "backwards if it has fallen",
    formula=r"L_prev = mean_i (1/T_i) Σ_t -min(r C, clip(r) C),   C_i = clip(G A_i / Σ_j |A_j| · φ(ξ), ±10),   "
    r"ξ = (μ_t - mean of the last 8 μ) / their spread,   φ(ξ) = ξ or λ ξ where ξ < 0;   then L of GRPO",
    use_when="rewards are noisy or the learning rate is high, and a bad update should be noticed and partly taken back: "
    "the last step's rollouts are used once more for that",
    data=PreviousStep(),
    terms={
        "previous": Term(
            source="previous",
            advantage=Attribution(),
            ratio=TokenRatio(against="behavior"),
            surrogate=PreviousClip(),
            aggregate=SequenceMeanTokenMean(),
            when="before",
        )
    },
    notes="The released code puts the current mean into the window first (data.counts_current), bounds the ratio from above only "
    "(terms.previous.surrogate.form=upper), limits the difference of means to 5 (data.limit), scales by lam after the bound "
    "(data.scale_late) and has lam 0. Its repeated update also carries the KL term of the base, here it does not; and it can be "
    "made every n steps, here it is made in each. With a value function take terms.previous.advantage.by=token and data.gate=2.",
)
