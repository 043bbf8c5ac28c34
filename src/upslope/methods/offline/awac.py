"""AWAC: the recorded actions imitated by how much better than the policy's own they are valued."""

from upslope.methods.offline.iql import iql
from upslope.objective.advantage.critic import CriticAdvantage
from upslope.objective.critics import QFunction, SoftValue
from upslope.objective.surrogate.improvement import AdvantageWeighted
from upslope.types import Paper

awac = iql.derive(
    name="awac",
    paper=Paper("AWAC: Accelerating Online Reinforcement Learning with Offline Datasets", arxiv="2006.09359", year=2020),
    differs="the critic asks what the policy would do next, and the advantage what it would do here; no value function of states",
    formula=r"L_π = -min(e^{A/λ}, 100) log π(a|s),   A = min_i Q_i(s,a) - min_i Q_i(s, a~π);   y = r + γ min_i Q̄_i(s', a'~π)",
    use_when="data first and then the environment: the policy can leave them step by step",
    advantage=CriticAdvantage(lagged=False, value=""),
    surrogate=AdvantageWeighted(beta=1.0),
    models={"q": QFunction(target=SoftValue(temperature=0.0, entropy=False), weight=0.5)},
    on={"control": {"settings.normalise_observations": True}},
    notes="surrogate.beta is 1/λ. The released code can divide the weights by their mean over the update (--set "
    "surrogate.normalised=true); the formula of the paper does not, and neither do we. d3rlpy does it too, and in its targets "
    "draws from another policy than it trains and pays for entropy.",
)
