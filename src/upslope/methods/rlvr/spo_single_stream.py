"""SPO: no groups; each task's own past is the baseline."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage.remembered import MemoryBaseline
from upslope.objective.aggregate import TokenMean
from upslope.objective.curriculum import ByUncertainty
from upslope.objective.data.last_response import LastResponse
from upslope.objective.memory import SuccessTracker
from upslope.objective.shape.rows import WhitenRows
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Paper

spo_single_stream = grpo.derive(
    name="spo-single-stream",
    paper=Paper("Single-stream Policy Optimization", arxiv="2509.13232", year=2025),
    differs="a remembered success rate per task instead of a group, whitened over the step; uncertain tasks come more often; no KL",
    formula=r"L = (1/ΣT) Σ_i Σ_t -min(r A, clip(r, 1-0.2, 1+0.28) A),   A = whitened over answers (R - a/(a+b)),   "
    r"(a, b) <- ρ (a, b) + (R, 1-R),   ρ = clip(2^(-D/0.06), 0.875, 0.96)",
    use_when="tasks come back during the run and a group per task is too dear: answers of very different lengths, slow "
    "environments, or many tasks that are nearly always or never solved",
    curriculum=ByUncertainty(candidates=4, floor=0.05),
    data=LastResponse(),
    advantage=MemoryBaseline("success"),
    shape=WhitenRows(),
    surrogate=PessimisticClip(low=0.2, high=0.28, dual=10.0),
    aggregate=TokenMean(),
    regularize=None,
    memory={"success": SuccessTracker()},
    notes="Meant for --samples-per-task 1 with as many more tasks; groups work too, their answers enter the memory together. "
    "The paper estimates every task on 8 answers before training; here a task starts at 1/2 unless its first visit brings "
    "memory.success.offline answers. Read in the released trainer: a task asked for the first time has drift 0; the spread is the "
    "unbiased one over the answers of the step; the drift is measured when an answer is sampled, before the step's updates; its "
    "half-life of 0.06 is fixed there. It compares with log-probabilities the training engine computed when the answer was stored, "
    "ours with those recorded while sampling, so truncated sampling (top_p, top_k) adds to the drift. A task that never comes back "
    "is measured against 1/2 alone, so make the set of tasks small enough that each is seen several times.",
)
