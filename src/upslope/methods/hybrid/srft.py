"""SRFT: imitation and reinforcement at once, each by how undecided the policy is."""

from dataclasses import replace

from upslope.methods.hybrid.hpt import imitation
from upslope.methods.hybrid.luffy import luffy
from upslope.objective.advantage.entropy_signed import EntropySigned
from upslope.objective.data.demonstrations import Demonstrations
from upslope.objective.data.gates import GradualGate
from upslope.objective.ratio import NoRatio
from upslope.objective.surrogate import LogLikelihood
from upslope.objective.surrogate.off_policy import BySource, ShapedProbability
from upslope.objective.weight.certainty import CertaintyWeight
from upslope.types import Paper

EVERYWHERE = GradualGate(own=(1.0,), off_policy=(1.0,), imitation=(1.0,))
"""Every group learns from its samples, reinforces its demonstration and imitates it."""

srft = luffy.derive(
    name="srft",
    paper=Paper(
        "SRFT: A Single-Stage Method with Supervised and Reinforcement Fine-Tuning for Reasoning", arxiv="2506.19767", year=2025
    ),
    differs="every demonstration is also imitated, the less the more undecided the policy is about it; right samples are pulled up "
    "the more undecided it was, wrong ones pushed down alike; the demonstration's probability is not bent",
    formula=r"L = mean_i (1/L) Σ_t -A_i log π on samples, -π A on the demonstration  +  (1/ΣT*) Σ -½ e^(-H̄) log π(y*),   "
    r"A_i = 0.1 e^H̄ if right, -1 if wrong",
    use_when="as for luffy, from a policy that demonstrations would tear away from what it knows",
    data=Demonstrations(gate=EVERYWHERE, join=True),
    advantage=EntropySigned(),
    ratio=NoRatio(),
    surrogate=BySource(own=LogLikelihood(), demonstrated=ShapedProbability(form="plain")),
    terms={"imitation": replace(imitation, weight=(CertaintyWeight(),))},
    notes="As coded in the repository of hpt, whose script bends the demonstration's probability as luffy does "
    "(surrogate.demonstrated.form=shaped); its table of methods does not. H̄ is the mean entropy over an answer before the step's "
    "first update, there in each update. The weights ½, 0.1 and -1 are the code's.",
)
