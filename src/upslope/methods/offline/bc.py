"""BC: the recorded actions imitated."""

from upslope.objective.aggregate import TokenMean
from upslope.objective.data.stored import UniformReplay
from upslope.objective.surrogate.improvement import Imitation
from upslope.policies.control.networks import Deterministic
from upslope.types import Method, Paper

bc = Method(
    name="bc",
    family="offline",
    learner="actor-critic",
    offline=True,
    paper=Paper("ALVINN: An Autonomous Land Vehicle in a Neural Network", year=1989),
    differs="no reward: the actions of a dataset are imitated",
    formula=r"L = 1/D ‖μ(s) - a‖²",
    use_when="the dataset is of one good kind of behaviour",
    data=UniformReplay(),
    policy=Deterministic(),
    surrogate=Imitation(),
    aggregate=TokenMean(),
    on={
        "control": {"settings.normalise_observations": True},
        # Choices have no mean.
        "control-discrete": {"policy": "Stochastic()"},
    },
    notes='--set surrogate.likelihood=true with --set \'policy=Stochastic(form="clipped", std="shared")\' imitates by '
    "log-likelihood; iql without its weights (beta 0) is that. Choices are always imitated by it.",
)
