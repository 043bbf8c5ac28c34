"""REC, REP and RED: group-relative REINFORCE made safe on old data by a mask, a penalty or a choice of data."""

from upslope.methods.rlvr.reinforce import reinforce
from upslope.objective.advantage.balanced import BalancedBaseline
from upslope.objective.aggregate import SequenceMeanTokenMean, TokenMean
from upslope.objective.ratio import SequenceRatio, TokenRatio
from upslope.objective.regularize.likelihood import LikelihoodBonus, ProximalPenalty
from upslope.objective.surrogate.masked import MaskedLikelihood
from upslope.objective.weight.advantage import AdvantageWeight
from upslope.types import Paper

_PAPER = Paper(
    "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm: Demystifying Some Myths About GRPO and Its Friends",
    arxiv="2509.24203",
    year=2025,
)

rec = reinforce.derive(
    name="rec",
    paper=_PAPER,
    differs="a one-sided mask stops tokens that have moved far enough; importance weight, mean over tokens",
    formula=r"L = (1/ΣT) Σ_i Σ_t -M sg[r] A log π,   M = 1[A ≥ 0, r ≤ 1+ε or A ≤ 0, r ≥ 1-ε],   A_i = R_i - mean",
    use_when="several updates are made on the same rollouts and you want to see mask and importance weight apart",
    ratio=TokenRatio(),
    surrogate=MaskedLikelihood(mask="one-side", importance="ratio"),
    aggregate=TokenMean(),
    notes="With the group's population spread (advantage.scale=std, advantage.ddof=0) and GRPO's mean this is GRPO's gradient. "
    "surrogate.mask and surrogate.importance give the paper's other variants.",
)

rec_nois = rec.derive(
    name="rec-nois",
    differs="no importance weight, and a trust region several times as wide: the paper's tip",
    formula=r"L = (1/ΣT) Σ_i Σ_t -M A log π,   M one-sided with bounds 1-0.6 and 1+2",
    use_when="rollouts are reused or stale and plain clipping learns too slowly",
    surrogate=MaskedLikelihood(mask="one-side", importance="none", low=0.6, high=2.0),
)

rec_ring = rec.derive(
    name="rec-ring",
    differs="no importance weight; the mask also lets through what has strayed far to the wrong side and would be brought back",
    formula=r"L = (1/ΣT) Σ_i Σ_t -M A log π,   M = 1[|r-1| ≤ ε] or (A ≥ 0, r ≤ 1-0.6) or (A ≤ 0, r ≥ 1+2)",
    use_when="rollouts are so stale that tokens leave the trust region against their advantage",
    surrogate=MaskedLikelihood(mask="ring", importance="none"),
)

rec_gspo = rec.derive(
    name="rec-gspo",
    differs="mask and weight from one length-normalised ratio per answer; mean per answer",
    formula=r"L = mean_i (1/T_i) Σ_t -M_i sg[s_i] A log π,   M_i one-sided with bounds 1-3e-4 and 1+4e-4",
    use_when="rewards are per answer and answers are long; on short ones widen the bounds as for gspo",
    ratio=SequenceRatio(),
    surrogate=MaskedLikelihood(mask="one-side", importance="ratio", low=3e-4, high=4e-4),
    aggregate=SequenceMeanTokenMean(),
)

opmd = rec.derive(
    name="opmd",
    differs="no mask and no weight: a squared log-ratio to the start of the step holds the policy instead (as in Kimi k1.5)",
    formula=r"L = (1/ΣT) Σ_i Σ_t [ -A log π + c (log π - log π_old)² ],   c = 0.1",
    use_when="a soft pull back is wanted instead of a hard clip",
    surrogate=MaskedLikelihood(mask="none", importance="none"),
    regularize=ProximalPenalty(weight=0.1),
    notes="The paper's code takes the square per token, which is what stands here; Kimi's formula has the whole answer's. An "
    "earlier form has no penalty but the advantage SoftBaseline (a soft maximum as baseline, damped).",
)

asymre = reinforce.derive(
    name="asymre",
    paper=_PAPER,
    differs="every baseline is lowered, as a bonus on the likelihood of all that was sampled; mean over tokens",
    formula=r"L = (1/ΣT) Σ_i Σ_t -(A + c) log π,   c = 0.1",
    use_when="rollouts are old and learning from failures makes training unstable",
    aggregate=TokenMean(),
    regularize=LikelihoodBonus(weight=0.1),
)

red = reinforce.derive(
    name="red",
    paper=_PAPER,
    differs="where wrong answers outnumber right ones, a random part of them is dropped before the mean is taken; mean over tokens",
    formula=r"L = (1/ΣT) Σ_i Σ_t -A log π,   A_i = R_i - mean of the kept, 0 for the dropped",
    use_when="old or given data hold far more failures than successes",
    advantage=BalancedBaseline(),
    aggregate=TokenMean(),
    notes="What is dropped still counts in the mean over tokens, as in the paper's code.",
)

red_weight = reinforce.derive(
    name="red-weight",
    paper=_PAPER,
    differs="each answer is weighted by the exponential of its advantage; mean over tokens",
    formula=r"L = (1/ΣT) Σ_i Σ_t -A e^{A/τ} log π,   τ = 1",
    use_when="old or given data should teach mainly by their best answers",
    aggregate=TokenMean(),
    weight=AdvantageWeight(temperature=1.0),
)
