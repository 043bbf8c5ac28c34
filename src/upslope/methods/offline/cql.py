"""CQL: SAC on a dataset, with critics that value actions outside it less."""

from upslope.methods.control.sac import sac
from upslope.objective.critics import QFunction, SoftValue
from upslope.objective.critics.conservative import Conservative
from upslope.objective.surrogate.cloning import ClonedImprovement
from upslope.types import Paper

cql = sac.derive(
    name="cql",
    family="offline",
    offline=True,
    paper=Paper("Conservative Q-Learning for Offline Reinforcement Learning", arxiv="2006.04779", year=2020),
    differs="critics pay for valuing any action above that of the data; no entropy in the target; a tenth of the learning rate "
    "for the actor",
    formula=r"L_Q = Σ_i (Q_i - y)² + α Σ_i (log Σ_j exp(Q_i(s, a_j) - log μ(a_j)) - Q_i(s, a)),   y = r + γ min_i Q̄_i(s', a')",
    use_when="the data leave out actions that would look good, and a value below the truth is better than one above it",
    surrogate=ClonedImprovement(),
    models={
        "q": QFunction(target=SoftValue(entropy=False), penalty=Conservative(weight=5.0), lr_scale=10.0),
        "temperature": dict(sac.models)["temperature"],
    },
    on={"control": {"settings.lr": 3e-5}},
    notes="The critics' learning rate is ten times the run's: 3e-4. α = 5 is for vectors as MuJoCo has them, 10 elsewhere "
    "(models.q.penalty.weight). The variant with a learned multiplier: --set models.m=PenaltyMultiplier "
    "--set models.q.penalty.multiplier=m. A warm-up by cloning: --set surrogate.imitation=1 "
    "--set 'controller=ThenWhole(after=0.1, knob=\"surrogate.imitation\")'; a widely used single-file version has one that ignores "
    "the recorded actions, ours imitates them. d3rlpy bootstraps from the policy's mean action unless soft_q_backup says "
    "otherwise, and learns its temperature by its value, not by its logarithm.",
)
