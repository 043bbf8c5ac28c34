"""TD3: a certain actor, two critics, targets at blurred actions, and an actor that moves at every second update."""

from upslope.methods.control.sac import sac
from upslope.objective.critics import QFunction, SmoothedAction
from upslope.objective.surrogate.improvement import DeterministicImprovement
from upslope.policies.control.networks import Deterministic
from upslope.rollout.acting import GaussianNoise, UniformFirst
from upslope.types import Paper

td3 = sac.derive(
    name="td3",
    paper=Paper("Addressing Function Approximation Error in Actor-Critic Methods", arxiv="1802.09477", year=2018),
    differs="a certain actor in place of an entropy bonus: noise is added to act, targets are blurred, it moves every second time",
    formula=r"L_π = -Q_1(s, μ(s)),   L_Q = Σ_i (Q_i - y)²,   y = r + γ min_i Q̄_i(s', clip(μ̄(s') + clip(ε, -c, c), -1, 1))",
    use_when="a certain policy is wanted, or the entropy's weight is hard to settle",
    policy=Deterministic(lag=0.005, lag_every=2, every=2),
    surrogate=DeterministicImprovement(),
    models={"q": QFunction(target=SmoothedAction(), lag_every=2)},
    acting=(UniformFirst(steps=100), GaussianNoise(std=0.1)),
    on={"control": {"settings.lr": 1e-3}},
    notes="Rates are those of Stable-Baselines3, whose networks are 400 and 300 wide (policy.hidden, models.q.network.hidden) and "
    "whose actions have no noise unless it is asked for. The slowly following copies move with the actor, as released.",
)
