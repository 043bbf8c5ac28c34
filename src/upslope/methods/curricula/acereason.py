"""AceReason: stages of problems and of token limits."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.aggregate import TokenMean
from upslope.objective.curriculum import Pools, PoolStage
from upslope.objective.memory import LastSuccess
from upslope.types import Paper

acereason = grpo.derive(
    name="acereason",
    family="curricula",
    paper=Paper(
        "AceReason-Nemotron: Advancing Math and Code Reasoning through Reinforcement Learning", arxiv="2505.16400", year=2025
    ),
    differs="stages whose answers may be longer and longer, the last without what is mostly solved; token mean, no KL",
    formula=r"L = (1/ΣT) Σ_i Σ_t -min(r A, clip(r, 1-0.2, 1+0.2) A),   r = 1 with one update a step;   "
    r"limit(step) = 8K, 16K, 24K, 32K tokens by quarters of the run",
    use_when="answers are long and one skill should come before another: short reasoning first, mathematics before code",
    aggregate=TokenMean(),
    regularize=None,
    curriculum=Pools(
        stages=(
            PoolStage(until=0.25, limit=8192),
            PoolStage(until=0.5, limit=16384),
            PoolStage(until=0.75, limit=24576),
            PoolStage(until=1.0, limit=32768, below=0.75),
        )
    ),
    memory={"rate": LastSuccess()},
    notes="Inferred from the abstract and from memory. Limits above --max-tokens do nothing, so set both, as in "
    "`acereason --max-tokens 64 --set curriculum.stages.0.limit=16`. The paper trains on mathematics, then on code: "
    "--set curriculum.stages.0.category=math, and so on, on a task with categories. It leaves out easy problems by a success rate "
    "measured beforehand; ours is that of the problem's last visit. It takes 8 answers at 8K and 16 later; ours are the run's. An "
    "answer cut at the limit earns what the task gives it, usually nothing. With one update a step, the default, the policy is the "
    "one that sampled and the clip never acts.",
)
