"""SAC: an actor that is paid for entropy, and two critics that value it."""

from upslope.objective.aggregate import TokenMean
from upslope.objective.critics import QFunction, SoftValue, Temperature
from upslope.objective.data.stored import UniformReplay
from upslope.objective.surrogate.improvement import SoftImprovement
from upslope.policies.control.networks import Stochastic
from upslope.rollout.acting import UniformFirst
from upslope.types import Method, Paper

sac = Method(
    name="sac",
    family="control",
    learner="actor-critic",
    paper=Paper("Soft Actor-Critic Algorithms and Applications", arxiv="1812.05905", year=2018),
    differs="learns from a replay store with two critics; entropy is part of the reward, its weight learned",
    formula=r"L_π = α log π(a|s) - min_i Q_i(s, a),   L_Q = ½ Σ_i (Q_i - y)²,   y = r + γ (min_i Q̄_i(s', a') - α log π(a'|s')),   "
    r"L_α = -log α (log π + H̄)",
    use_when="steps of the environment are what costs: it learns from each many times",
    data=UniformReplay(),
    policy=Stochastic(),
    surrogate=SoftImprovement(),
    aggregate=TokenMean(),
    models={"q": QFunction(target=SoftValue(), weight=0.5), "temperature": Temperature()},
    acting=UniformFirst(steps=100),
    notes="Sizes and rates are those of Stable-Baselines3, which differ from the paper's in the 100 first steps (10,000 there). "
    "It adds 1e-6 inside the logarithm of tanh's derivative, which is exact here. Over choices every "
    "expectation is exact and the wanted entropy is 0.98 of the largest, as in SAC-Discrete.",
)
