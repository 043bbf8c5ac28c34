"""GTPO: tokens that good and bad answers share are not punished, uncertain answers pay or are left out."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.ratio.on_policy import OnPolicy
from upslope.objective.regularize.entropy import AnswerEntropyPenalty
from upslope.objective.surrogate import Unclipped
from upslope.objective.weight.conflict import ConflictTokens, EntropyCutoff
from upslope.types import Paper

gtpo = grpo.derive(
    name="gtpo",
    paper=Paper("GTPO: Trajectory-Based Policy Optimization in Large Language Models", arxiv="2508.03772", year=2025),
    differs="tokens that good and bad answers share are not punished; uncertain answers pay or are left out; no ratio, no KL",
    formula=r"L = mean_i δ_i (1/T_i) Σ_t -(A_i - 0.1 ⟨H⟩_i) λ_it r_t,   r = π / sg[π],   λ = 2 or 0 on shared tokens of good or "
    r"bad answers,   δ = 0 if ⟨H⟩_first < ln 2 < ⟨H⟩_i",
    use_when="answers share a format that breaks when most of a group is wrong; one update per step",
    ratio=OnPolicy(),
    surrogate=Unclipped(),
    weight=(ConflictTokens(boost=2.0), EntropyCutoff()),
    regularize=AnswerEntropyPenalty(weight=0.1),
    notes="The released code differs in four places: the loss sums over answers (aggregate SequenceSumTokenMean), each answer's is "
    "divided by the length of its longer shared run (weight.0.divide=true), the entropy cut is 0.7 whatever the policy began with "
    "(weight.1.threshold=0.7, weight.1.condition=always), and advantages are only centred (advantage.scale=none). The entropy "
    "penalty acts on groups without signal too.",
)
