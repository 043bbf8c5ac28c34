"""DMPO: a group's distribution matched to one that its advantages ask for."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.aggregate import TokenMean
from upslope.objective.ratio import NoRatio
from upslope.objective.regularize.matching import GroupMatching
from upslope.objective.surrogate import PessimisticClip
from upslope.objective.surrogate.silent import NoSurrogate
from upslope.types import Paper

dmpo = grpo.derive(
    name="dmpo",
    paper=Paper("Beyond Mode Collapse: Distribution Matching for Diverse Reasoning", arxiv="2605.19461", year=2026),
    differs="a term that matches the policy over the group to a Boltzmann distribution of its advantages; wider upper clip, mean "
    "over tokens, no KL",
    formula=r"L = L_GRPO + β mean_groups (1/G) Σ_i (Q_i - P_i)²,   P = softmax(mean_t log π),   Q = softmax(A / τ),   τ = 1/15",
    use_when="there are several right answers and pass@k matters: equally good ones get equal targets",
    surrogate=PessimisticClip(low=0.2, high=0.28),
    aggregate=TokenMean(),
    regularize=GroupMatching(),
    notes="β is 1 here and 2 in a released script, whose code ignores it in this mode. The paper argues by the forward KL "
    "(regularize.divergence=forward-kl) and its code takes the squared distance. regularize.skip_flat leaves out groups without "
    "signal, which are otherwise pushed towards uniform. Here the term is a mean over groups, those left out counted as matched. "
    "The released code averages the squares over the answers that are kept, and the Jensen-Shannon divergence over the groups that "
    "are kept: regularize.mean_over=kept. The two agree for groups of one size without skip_flat.",
)

dmpo_pure = dmpo.derive(
    name="dmpo-pure",
    differs="the matching term alone",
    formula=r"L = β mean_groups (1/G) Σ_i (Q_i - P_i)²",
    use_when="as a study of the matching term by itself",
    ratio=NoRatio(),
    surrogate=NoSurrogate(),
)
