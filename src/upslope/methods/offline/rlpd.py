"""RLPD: SAC that looks at a dataset in every update, with many normalised critics and many updates for each step."""

from upslope.methods.control.sac import sac
from upslope.objective.critics import MeanOfMembers, QFunction, SmallestOfSome, SoftValue, Temperature
from upslope.objective.data.stored import MixedReplay
from upslope.objective.networks import MLPEnsemble
from upslope.objective.surrogate.improvement import SoftImprovement
from upslope.policies.control.networks import Stochastic
from upslope.types import Paper

rlpd = sac.derive(
    name="rlpd",
    family="offline",
    paper=Paper("Efficient Online Reinforcement Learning with Offline Data", arxiv="2302.02948", year=2023),
    differs="half of every update's rows are the dataset's; ten critics with layer norm, two of which are drawn for the target; "
    "ten updates of the critics for a step of the environment and for one of the actor",
    formula=r"y = r + γ (min over 2 of 10 Q̄_i(s', a') - α log π(a'|s')),   L_π = α log π(a|s) - mean_i Q_i(s, a)",
    use_when="there are some demonstrations or older logs, and steps of the environment are what costs",
    data=MixedReplay(demonstrated=0.5),
    policy=Stochastic(every=10),
    surrogate=SoftImprovement(over=MeanOfMembers()),
    models={
        "q": QFunction(
            network=MLPEnsemble(members=10, layer_norm=True), target=SoftValue(), over=SmallestOfSome(some=2), weight=0.1
        ),
        "temperature": Temperature(every=10),
    },
    on={"control": {"settings.horizon": 100, "settings.updates_per_step": 1000}},
    notes="A step of the run is 100 steps of the environment and 1000 updates; --updates-per-step 2000 with policy.every=20 and "
    "models.temperature.every=20 is the paper's other ratio. The critics' loss is a mean over them. Where rewards are sparse, "
    "leave the entropy out of the target: models.q.target.entropy=false. The released code wants half of the entropy that SAC "
    "wants (models.temperature.target_entropy) and moves the temperature by its value, not by its logarithm.",
)
