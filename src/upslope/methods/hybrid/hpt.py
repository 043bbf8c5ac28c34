"""HPT: a group that fails imitates, one that does not reinforces."""

from upslope.methods.rlvr.grpo import dr_grpo
from upslope.objective.advantage import RawReward
from upslope.objective.advantage.constant import ConstantAdvantage
from upslope.objective.aggregate import ConstantLength, TokenMean
from upslope.objective.data.demonstrations import IMITATED, OFF_POLICY, Demonstrations
from upslope.objective.data.gates import GradualGate, HardGate
from upslope.objective.filter.gated import Gated
from upslope.objective.ratio import NoRatio
from upslope.objective.regularize import EntropyBonus
from upslope.objective.surrogate import LogLikelihood, Unclipped
from upslope.objective.surrogate.off_policy import BySource, ShapedProbability
from upslope.objective.terms import Term
from upslope.objective.weight.gate import GateWeight
from upslope.types import Paper

imitation = Term(
    source=IMITATED,
    advantage=ConstantAdvantage(),
    ratio=NoRatio(),
    surrogate=LogLikelihood(),
    aggregate=TokenMean(),
    when="with",
    weight=(GateWeight(),),
)
"""Supervised learning of demonstrations in the updates of their groups, as much as the gate lets through."""

hpt = dr_grpo.derive(
    name="hpt",
    family="hybrid",
    paper=Paper("Towards a Unified View of Large Language Model Post-Training", arxiv="2509.04419", year=2025),
    differs="a group without a right answer imitates the demonstration in place of its samples; no clip, a small entropy bonus",
    formula=r"L = mean_i (1/L) Σ_t -r A  over the samples of groups with k > γ right answers   +   "
    r"(1/ΣT*) Σ -log π(y*)  over the demonstrations of the others,   A_i = R_i - mean,   γ = 0",
    use_when="solutions are known and many problems are never solved by sampling: they are imitated until they are, then "
    "reinforced",
    data=Demonstrations(gate=HardGate()),
    filter=Gated(),
    surrogate=Unclipped(),
    regularize=EntropyBonus(weight=0.001),
    terms={
        "imitation": imitation,
        "off_policy": Term(
            source=OFF_POLICY,
            advantage=RawReward(),
            ratio=NoRatio(),
            surrogate=ShapedProbability(),
            aggregate=ConstantLength(),
            when="with",
            weight=(GateWeight(),),
        ),
    },
    notes="Read in the released code: the gate counts right answers (data.gate.imitate: 0 for Qwen, 2 for LLaMA models); imitation "
    "has a weight (terms.imitation.scale: 1, and 0.3 for the 1.5B model) and a mean over its own tokens, apart from the samples'. "
    "Up to data.gate.reinforce the demonstration is a sample of another policy instead, alone in its group, so that its advantage "
    "is its reward; off in the paper. The code sums the loss of samples over the rows of a device where we take their mean, "
    "which at its sizes makes theirs about 8 times larger beside imitation (an eighth of the token limit as aggregate.length does "
    "the same). It clips gradients at 1, as we do, and also leaves out updates whose norm is above 80, which we do not. Its "
    "entropy bonus covers demonstrations too, ours the samples. It has a learning rate of 5e-6 and 128 problems of 8 answers, for "
    "models of 1.5B to 8B.",
)

hpt_soft = hpt.derive(
    name="hpt-soft",
    differs="from imitation to reinforcement by degrees: with 0, 1, 2, 3 and more right answers samples weigh 0, 1/8, 1/4, 1/2, 1 "
    "and imitation 1, 1/2, 1/4, 1/8, 0; the demonstration is in every group and is reinforced, most with two right answers",
    formula=r"L = mean_i (1/L) Σ_t -α_k r A  +  -ω_k f(π) A on the demonstration  +  (1/ΣT*) Σ -β_k log π(y*),   "
    r"A_i = R_i - mean over samples and demonstration,   f(p) = p / (p + 0.1)",
    use_when="hpt's switch is too abrupt: groups with one lucky answer should still lean on the demonstration",
    data=Demonstrations(gate=GradualGate(), join=True),
    filter=None,
    surrogate=BySource(own=Unclipped(), demonstrated=ShapedProbability()),
    weight=GateWeight(),
    terms={"imitation": imitation},
    notes="The tables are those of the released trainer, indexed there by right answers with the demonstration among them. Its "
    "losses do not read them, so how they are applied is inferred: each multiplies its own loss, and as in its luffy the "
    "demonstration counts in the baseline of its group. It comes on top of the samples; there it takes the place of one.",
)
