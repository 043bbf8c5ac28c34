"""ADORA: groups weighted by whether their rollouts are useful at the moment."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.shape.utility import RolloutUtility
from upslope.types import Paper

adora = grpo.derive(
    name="adora",
    paper=Paper(
        "ADORA: Training Reasoning Models with Dynamic Advantage Estimation on Reinforcement Learning",
        arxiv="2602.10019",
        year=2026,
    ),
    differs="groups whose right answers are not longer than their wrong ones count a tenth",
    formula=r"L as grpo, with A_i <- w A_i,   w = 1 if max length of right > mean length of wrong answers in the group, else 0.1",
    use_when="thinking longer is what helps and the policy should learn to do so sooner",
    shape=RolloutUtility(useful=1.0, useless=0.1),
    notes="The length rule is that of the released text code; its vision code also calls a group without right answers useful "
    "(shape.without_right) and one without wrong answers useless (shape.without_wrong). The rule by difficulty and the amplifying "
    "mode (shape.useful above 1) are told in the paper; their constants were not found, so shape.hard=0.5 is ours.",
)
