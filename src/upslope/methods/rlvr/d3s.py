"""D3S: train on the rollouts and tokens that tell most, and relax that as the run goes on."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.controller.schedule import DownSampling
from upslope.objective.filter.variance import MaxVariance
from upslope.objective.weight.downsample import TopAdvantageEntropy
from upslope.types import Paper

d3s = grpo.derive(
    name="d3s",
    paper=Paper(
        "Learning More with Less: A Dynamic Dual-Level Down-Sampling Framework for Efficient Policy Optimization",
        arxiv="2509.22115",
        year=2025,
    ),
    differs="trains on the answers with the widest spread of advantages, in them on tokens of large |A| H; fewest at the start",
    formula=r"S = argmax_{|S| = N} Var(A_S),   w_it = 1[|A| H among the top K of S],   (N, K) from (¼, 20%) to all, linearly",
    use_when="an update costs more than sampling: many samples per task, most of them alike",
    filter=MaxVariance(keep=0.25),
    weight=TopAdvantageEntropy(fraction=0.2),
    controller=DownSampling(),
    notes="Read in public notes of the paper. Start and end of the schedule are ours; the paper says that fewer than a fifth of "
    "the tokens are used. Means are over the tokens that learn (weight.denominator). Whether S is chosen from the whole step or "
    "from each group is filter.over; the paper has both.",
)
