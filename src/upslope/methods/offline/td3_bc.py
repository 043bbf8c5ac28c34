"""TD3+BC: TD3 on a dataset, with a pull to the recorded action."""

from upslope.methods.control.td3 import td3
from upslope.objective.regularize.data import TowardsData
from upslope.objective.surrogate.improvement import DeterministicImprovement
from upslope.rollout.acting import GaussianNoise
from upslope.types import Paper

td3_bc = td3.derive(
    name="td3-bc",
    family="offline",
    offline=True,
    paper=Paper("A Minimalist Approach to Offline Reinforcement Learning", arxiv="2106.06860", year=2021),
    differs="the actor is drawn to the recorded action; values are scaled to the size of that pull; observations are normalised",
    formula=r"L_π = -λ Q_1(s, μ(s)) + 1/D ‖μ(s) - a‖²,   λ = α / mean|Q_1(s, μ(s))|",
    use_when="the data are narrow, and td3 alone believes in actions that nobody tried",
    surrogate=DeterministicImprovement(scale=2.5),
    regularize=TowardsData(),
    acting=GaussianNoise(std=0.1),
    on={"control": {"settings.lr": 3e-4, "settings.normalise_observations": True}},
    notes="The squared distance is a mean over the action's dimensions, as released, not a sum. At surrogate.scale=0 it is bc.",
)
