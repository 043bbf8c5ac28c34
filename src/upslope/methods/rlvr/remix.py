"""ReMix."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.controller.reincarnation import Reincarnation
from upslope.objective.data.replay import Replay
from upslope.objective.ratio.shifted import ShiftedRatio
from upslope.objective.references.snapshot import Snapshot
from upslope.objective.regularize.convex import ConvexKL
from upslope.objective.surrogate.shifted import ShiftedClip
from upslope.types import Paper

remix = grpo.derive(
    name="remix",
    paper=Paper(
        "Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large Language Model",
        arxiv="2507.06892",
        year=2025,
    ),
    differs="two fifths of each batch are groups of the last two steps, clipped around where the step began; a second KL anchor "
    "one step behind; after 100 steps the reached policy becomes the start and only fresh rows count",
    formula=r"L = mean_i (1/T_i) Σ_t [ -min(r A, clip(r, c-ε, c+ε) A) + β (λ KL_start + (1-λ) KL_previous) ],   r = π/μ,  "
    r"c = π_k/μ,   λ = max(1 - 0.1 ⌈max(t-50, 0)/10⌉, 0.5)",
    use_when="rollouts are what costs: more is to be learned from each of them early on",
    data=Replay(),
    ratio=ShiftedRatio(),
    surrogate=ShiftedClip(),
    regularize=ConvexKL(),
    references={"previous": Snapshot()},
    controller=Reincarnation(),
    notes="The paper goes through each batch twice in the first phase: that is a setting here, --passes 2, and holds for the whole "
    "run. Its fraction is of the batch: fresh groups stay tasks_per_step, older ones come on top. The weight of its entropy bonus "
    "is not printed in what we have read; there is none here. kl_start is measured to the new start after the switch. In runs "
    "shorter than controller.until steps there is no second phase.",
)
