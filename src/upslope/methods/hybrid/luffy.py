"""LUFFY: a demonstration among the samples, reinforced without knowing who wrote it."""

from upslope.methods.rlvr.grpo import dr_grpo
from upslope.objective.data.ground_truth import GroundTruth
from upslope.objective.regularize import EntropyBonus
from upslope.objective.surrogate import Unclipped
from upslope.objective.surrogate.off_policy import BySource, ShapedProbability
from upslope.types import Paper

luffy = dr_grpo.derive(
    name="luffy",
    family="hybrid",
    paper=Paper("Learning to Reason under Off-Policy Guidance", arxiv="2504.14945", year=2025),
    differs="a demonstration joins each group as one more sample and learns by a bent probability in place of a ratio; no clip, a "
    "small entropy bonus",
    formula=r"L = mean_i (1/L) Σ_t -r A on samples, -f(π) A on the demonstration,   f(p) = p / (p + 0.1),   "
    r"A_i = R_i - mean over samples and demonstration",
    use_when="solutions are known and samples are sometimes right: what the samples lack is learned, what they know already hardly "
    "moves",
    data=GroundTruth(),
    surrogate=BySource(own=Unclipped(), demonstrated=ShapedProbability(gamma=0.1)),
    regularize=EntropyBonus(weight=0.001),
    notes="As in the code released with hpt: no spread, no clip, a constant length. The demonstration earns what the task pays for "
    "it, which is 1 where solutions are right. It comes on top of the samples; there it takes the place of one of eight.",
)
