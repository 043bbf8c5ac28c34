"""Supervised fine-tuning by other divergences than total variation."""

from upslope.methods.hybrid.sft import sft
from upslope.objective.surrogate.implicit_reward import ImplicitReward
from upslope.types import Paper

fdiv_sft = sft.derive(
    name="fdiv-sft",
    paper=Paper("Implicit Reward as the Bridge: A Unified View of SFT and DPO Connections", arxiv="2507.00018", year=2025),
    differs="what has become likelier than it was at the start is learned less: the divergence to the start stays in the objective",
    formula="L = -(1/Σ_i T_i) Σ_i T_i φ(r_i)/β,   r_i = (β/T_i) Σ_t log(π/π_start),   φ(r) = r - r²/4",
    use_when="fine-tuning on demonstrations comes before preferences or RL, and must not lead far from the model it starts from",
    surrogate=ImplicitReward(),
    notes="surrogate.divergence chooses φ; total-variation is sft. The table of φ is derived, not read in the paper. The paper's "
    "reward is of whole answers, whose sum of log-ratios has no bound: here it is the mean over tokens (surrogate.unit). The loss "
    "is divided by β, so that β sets when learning fades and not the size of a step. A step also evaluates the start: one "
    "forward pass more than sft.",
)
