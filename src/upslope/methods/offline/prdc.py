"""PRDC: TD3+BC, drawn to the nearest recorded pair in place of the action recorded at the same state."""

from upslope.methods.offline.td3_bc import td3_bc
from upslope.objective.critics import QFunction, SmoothedAction
from upslope.objective.models.neighbours import NearestNeighbour
from upslope.objective.regularize.data import TowardsNearest
from upslope.types import Paper

prdc = td3_bc.derive(
    name="prdc",
    paper=Paper("Policy Regularization with Dataset Constraint for Offline Reinforcement Learning", arxiv="2306.06569", year=2023),
    differs="the actor is drawn to the nearest recorded pair of state and action, which may be of another state close by",
    formula=r"L_π = -λ Q_1(s, μ(s)) + 1/D ‖μ(s) - a_j‖²,   j = argmin_i ‖(βs, μ(s)) - (βs_i, a_i)‖,   λ = α / mean|Q_1(s, μ(s))|",
    use_when="good actions were recorded near a state, and at the state itself poor ones",
    regularize=TowardsNearest(),
    models={"q": QFunction(target=SmoothedAction(), lag_every=2), "neighbours": NearestNeighbour(beta=2.0)},
    notes="States are compared as the policy sees them, normalised. The search is exact, by a KD-tree over the whole dataset on "
    "the CPU; it slows down with the dimensions of state and action. A large models.neighbours.beta makes it td3-bc. Some of the "
    "paper's runs have a beta of 1.",
)
