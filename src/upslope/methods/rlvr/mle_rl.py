"""RL for machine learning engineering agents: gradients by the time that actions took."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.weight.by_duration import ByDuration
from upslope.types import Paper

mle_rl = grpo.derive(
    name="mle-rl",
    paper=Paper("Reinforcement Learning for Machine Learning Engineering Agents", arxiv="2509.01684", year=2025),
    differs="an answer counts by how long what it set going took, beside the mean of the update",
    formula=r"L = mean -w_i min(r A, clip(r) A),   w_i = Δt_i / mean Δt",
    use_when="answers are programs or tool calls that take very different times and slow ones are cut off; with --reward "
    "milestones, which pays for how far a program came. +mle-rl adds the weight to any method",
    weight=ByDuration(),
    notes="The weight is the paper's; dividing by the mean duration is ours and keeps the step size. The paper trains with PPO; "
    "this derives from grpo, and ppo+mle-rl composes. The weight corrects for slow actions that are cut off at the end of a window "
    "of time. Runs here wait for every answer, and where nothing is cut off our simulation finds no bias to undo "
    "(docs/claims/mle-rl.md); what --reward-seconds drops it cannot bring back. Where all durations are equal it is "
    "grpo to the last bit.",
)
