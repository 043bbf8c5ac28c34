"""SEC: a bandit over categories of problems, paid by how much they teach."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.curriculum import ByCategory
from upslope.objective.memory import CategoryGain
from upslope.types import Paper

sec = grpo.derive(
    name="sec",
    family="curricula",
    paper=Paper("Self-Evolving Curriculum for LLM Reasoning", arxiv="2505.14970", year=2025),
    differs="each problem's category is drawn by how large the advantages of its answers lately were",
    formula=r"P(c) = exp(Q_c/τ) / Σ_k exp(Q_k/τ),   Q_c <- (1-a) Q_c + a mean |A_i| over the answers to c,   τ = 1, a = 0.5",
    use_when="problems come in kinds or levels of very different difficulty, and which of them teaches now changes during the run",
    curriculum=ByCategory(),
    memory={"category": CategoryGain()},
    notes="The update is the standard recency-weighted bandit; its constants (a = 0.5, τ = 1) are ours, not read in the "
    "paper. With rewards of 0 and 1 the mean absolute advantage of a group is largest where half of its answers are right, "
    "so the bandit seeks what is neither solved nor out of reach. It needs a task whose problems are of several "
    "categories: a mixture (--task A+B, also of reasoning-gym's datasets), JSONL with the key 'category'. Problems are "
    "drawn from curriculum.candidates times as many as a step takes, so a category rarer than 1/candidates cannot fill a "
    "step. Rows that a filter drops count as teaching nothing.",
)
