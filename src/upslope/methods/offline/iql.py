"""IQL: values of the better actions in the data, without asking for any other; then imitation of the better ones."""

from upslope.methods.control.sac import sac
from upslope.objective.advantage.critic import CriticAdvantage
from upslope.objective.critics import ExpectileValue, QFunction, StateValue
from upslope.objective.surrogate.improvement import AdvantageWeighted
from upslope.policies.control.networks import Stochastic
from upslope.types import Paper

iql = sac.derive(
    name="iql",
    family="offline",
    offline=True,
    paper=Paper("Offline Reinforcement Learning with Implicit Q-Learning", arxiv="2110.06169", year=2021),
    differs="an expectile of the critic over recorded actions takes the place of what the policy would do; the actor imitates",
    formula=r"L_V = |τ - 1(u<0)| u²,  u = min_i Q̄_i(s,a) - V(s);   L_Q = ½ Σ_i (r + γ V(s') - Q_i)²;   "
    r"L_π = -min(e^{βu}, 100) log π(a|s)",
    use_when="good actions are in the data, spread over many episodes",
    policy=Stochastic(form="clipped", std="shared"),
    advantage=CriticAdvantage(),
    surrogate=AdvantageWeighted(beta=3.0),
    models={"q": QFunction(target=StateValue(), order=-2, weight=0.5), "value": ExpectileValue(expectile=0.7)},
    acting=None,
    on={"control": {"settings.normalise_observations": True}},
    notes="The released critic loss is half the sum over the two critics, and so is ours; d3rlpy takes the sum, and bounds the "
    "shared spread by a sigmoid. The paper lowers the actor's learning rate along a cosine; here it is constant. Mazes: "
    "models.value.expectile=0.9, surrogate.beta=10.",
)
