"""NGRPO: groups that are all wrong learn from a right answer nobody gave."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.advantage.virtual import VirtualSamples
from upslope.objective.aggregate import TokenMean
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Paper

ngrpo = grpo.derive(
    name="ngrpo",
    paper=Paper("NGRPO: Negative-enhanced Group Relative Policy Optimization", arxiv="2509.18851", year=2025),
    differs="a virtual sample of the best reward in every group, so all-wrong groups push away; uneven clip, token mean, no KL",
    formula=r"L = (1/ΣT) Σ_i Σ_t -min(r A, clip(r, 1-0.16, 1+0.24) A),   A_i = (R_i - mean') / (std' + 1e-6) of R_1..R_G, R_max",
    use_when="many tasks are so hard that whole groups are wrong: they push away from what was tried instead of being lost",
    advantage=VirtualSamples(virtual=1, best=1.0),
    surrogate=PessimisticClip(low=0.16, high=0.24),
    aggregate=TokenMean(),
    regularize=None,
    notes="The released script also resamples groups that are all right; their advantage is zero here anyway, and add "
    "DropConstantGroups only where it tells right from wrong. advantage.best must be the most a sample can earn: a smaller one "
    "punishes what was right. The released code adds no virtual sample to a group of one, whose advantage there is its reward: "
    "advantage.alone=reward.",
)
