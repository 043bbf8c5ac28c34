"""EMPG: steps of an answer weighed by how sure the policy was of them."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.shape.modulate import EntropyModulation
from upslope.types import Paper

empg = grpo.derive(
    name="empg",
    paper=Paper(
        "Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents", arxiv="2509.09265", year=2025
    ),
    differs="each step's advantage is scaled up where the policy was confident, plus a bonus for leading into a confident step",
    formula=r"A_is = A_i g(H_s) + ζ f(H_{s+1}) - mean,   g = e^{-k H} / mean e^{-k H},   f = e^{-k' H},   "
    r"H a step's entropy, scaled to [0, 1]",
    use_when="answers have several steps (agents, chains of thought) and only the end is rewarded",
    shape=EntropyModulation(scale=1.0, clarity=1.0, bonus=0.05),
    notes="The scaling and the bonus were read in the pseudo-code of the project's page (whose bonus is 0.1); that the mean over "
    "steps is subtracted at the end is recalled (shape.centre). A step is what the task's separator ends. The bonus also comes "
    "to groups without signal.",
)
