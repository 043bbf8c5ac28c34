"""GUI-G1: harder problems count more, and a loss scaled by a fixed length."""

from upslope.methods.rlvr.grpo import dr_grpo
from upslope.objective.aggregate import ConstantLength
from upslope.objective.weight.difficulty import DifficultyWeight
from upslope.types import Paper

gui_g1 = dr_grpo.derive(
    name="gui-g1",
    paper=Paper("GUI-G1: Understanding R1-Zero-Like Training for Visual Grounding in GUI Agents", arxiv="2505.15810", year=2025),
    differs="each problem is weighted by its difficulty, which the task gives; the fixed length is 64",
    formula=r"L = mean_i (w_q / 64) Σ_t -min(r A, clip(r, 1-ε, 1+ε) A),   A_i = R_i - mean,   w_q = clip(d_q / mean d, ½, 2)",
    use_when="the data say which problems are hard (grounding: small targets) and easy ones would dominate",
    weight=DifficultyWeight(low=0.5, high=2.0),
    aggregate=ConstantLength(64),
    notes="The paper's other half is a task's: the reward hit + 0.25 IoU + 0.125 box is that of the task grounding, whose prompt "
    "asks for the answer alone. The released code multiplies by a rate that stands in its data; how that is made was not found. "
    "Ours is the relative area to the power -1/2, normalised over the update. A task without one is trained as by dr-grpo.",
)
