"""DCPO: bounds from each token's probability, advantages from the task's whole history."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage.history import SmoothBaseline
from upslope.objective.aggregate import SequenceSumTokenMean
from upslope.objective.surrogate.probability import ProbabilityClip
from upslope.types import Paper

dcpo = grpo.derive(
    name="dcpo",
    paper=Paper("DCPO: Dynamic Clipping Policy Optimization", arxiv="2509.02333", year=2025),
    differs="unlikely tokens may move further, rewards are standardised against the task's history, answers are summed; no KL",
    formula=r"L = Σ_i (1/T_i) Σ_t -min(r A, clip(r, lo, hi) A),   hi, lo = ½ + ½ √(1 + 4ε/q), ½ + ½ √(1 - 4ε/q),   "
    r"A the smaller mix of R standardised in its group and over all visits",
    use_when="tasks come back during the run and many groups earn the same throughout, or a fixed clip stops most rare tokens",
    advantage=SmoothBaseline(),
    surrogate=ProbabilityClip(low=0.16, high=0.2, most=10.0, dual=10.0),
    aggregate=SequenceSumTokenMean(),
    regularize=None,
    notes="The released aggregation is a mean without an axis: over a batch it is the plain mean over tokens, aggregate=TokenMean, "
    "and the sum of answers' means only with one answer per call. Summing makes the gradient grow with the batch; with Adam that "
    "only meets the gradient clip. The released scripts use 0.2 and 0.28 for the bounds.",
)
