"""AHPO: imitation joins while right answers are scarce."""

from dataclasses import replace

from upslope.methods.hybrid.hpt import imitation
from upslope.methods.rlvr.grpo import grpo
from upslope.objective.aggregate import SequenceMeanTokenMean
from upslope.objective.data.demonstrations import Demonstrations
from upslope.objective.data.gates import ScarceGate
from upslope.types import Paper

ahpo = grpo.derive(
    name="ahpo",
    family="hybrid",
    paper=Paper(
        "MM-HELIX: Boosting Multimodal Long-Chain Reflective Reasoning with Holistic Platform and Adaptive Hybrid Policy "
        "Optimization",
        arxiv="2510.08540",
        year=2025,
    ),
    differs="groups with fewer than a few right answers also imitate a demonstration; their samples are never switched off",
    formula=r"L = L_GRPO + ξ (1/|y*|) Σ_t -log π(y*_t),   ξ = 1[ Σ_i 1[R_i = 1] < R̂ ],   R̂ = 1",
    use_when="as for hpt, where the samples of a group that leans on its demonstration should still count",
    data=Demonstrations(gate=ScarceGate()),
    terms={"imitation": replace(imitation, aggregate=SequenceMeanTokenMean())},
    notes="Inferred from the abstract: the threshold R̂ (data.gate.needed) and the weight of imitation (terms.imitation.scale) are "
    "not printed. Imitation is averaged over the demonstrations of an update, not over all its problems, so that it does not fade "
    "where few need it. All else is grpo's, its KL too.",
)
