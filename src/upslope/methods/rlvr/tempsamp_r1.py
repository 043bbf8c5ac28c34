"""TempSamp-R1."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage.anchored import AnchoredBaseline
from upslope.objective.data.ground_truth import GroundTruth
from upslope.objective.reward.soft import SoftReward
from upslope.types import Paper

tempsamp_r1 = grpo.derive(
    name="tempsamp-r1",
    paper=Paper(
        "TempSamp-R1: Effective Temporal Sampling with Reinforcement Fine-Tuning for Video LLMs", arxiv="2509.18056", year=2025
    ),
    differs="the reference answer joins each group as one more sample, and rewards are bent so that it does not make all samples "
    "look bad",
    formula=r"A_i = (ř_i - mean) / (std + 1e-6) over samples and reference,   ř = 0.8 + 0.01 ln(r + 0.2) where r >= 0.8, "
    r"0.8 - (e^(0.8 - r) - 1)/(e - 1) below",
    use_when="answers are known, the reward is graded, and samples hardly ever come near the best answer",
    data=GroundTruth(),
    reward=SoftReward(),
    notes="The paper samples G - 1 answers and adds one; here samples_per_task are sampled and the reference comes on top. The "
    "reference counts as the policy's own (ratio one at the step's start), as in the paper. Bending lifts the best sample above "
    "the mean only where it is itself not far off: with samples at 0.2, 0.2, 0.45 it does, at 0.1, 0.2, 0.3 not. Left out: the "
    "format reward of the second phase and the choice between thinking and answering at once, which belong to a prompt and a task.",
)

tempsamp_r1_anchor = tempsamp_r1.derive(
    name="tempsamp-r1-anchor",
    differs="raw rewards; samples are compared among themselves, the reference gets 1.2 times the best sample's advantage",
    formula=r"A_i = (R_i - mean) / (std + 1e-6) over the samples,   A_reference = 1.2 max_i A_i",
    use_when="rewards should stay as they are, and the reference should never weigh much more than a good sample",
    reward=None,
    advantage=AnchoredBaseline(),
    notes="The paper's other way to keep a reference from biasing the group. Where all samples earn the same the reference teaches "
    "nothing, so it cannot begin from nothing.",
)
