"""AsyncFlow: sampling and learning at the same time, with weights of a bounded age."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.filter.stale import Stale
from upslope.objective.weight.truncated import Truncated
from upslope.types import Paper

asyncflow = grpo.derive(
    name="asyncflow",
    paper=Paper("AsyncFlow: An Asynchronous Streaming RL Framework for Efficient LLM Post-Training", arxiv="2507.01663", year=2025),
    differs="counts what older weights, or eight bits, sampled by its importance, cut at 2, and drops what is older than eight "
    "steps",
    formula=r"L = mean -w_t min(r A, clip(r) A),   w_t = min(C, π_old/μ) where older weights or eight bits drew the token, else 1",
    use_when="sampling runs ahead of learning (--workers, --max-staleness), or in eight bits (--sampling-precision fp8); "
    "+asyncflow makes any method fit for that",
    filter=Stale(most=8.0),
    weight=Truncated(cap=2.0),
    notes="The paper is about the system: workers, a store by rows and columns, weights that are at most so many steps old. The "
    "correction is the decoupled one of AReaL (arXiv 2505.24298), the ratio of the step being taken to the policy before it; its "
    "cut at 2 is ours. With --max-staleness 0, and sampled in the policy's own precision, it is grpo to the last bit.",
)
