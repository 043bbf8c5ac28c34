"""H2O: a small dataset of the real world and a simulator that is not quite right."""

from upslope.methods.control.sac import sac
from upslope.objective.critics import QFunction, SoftValue
from upslope.objective.critics.dynamics_gap import DynamicsGap, DynamicsRatio
from upslope.objective.data.stored import MixedReplay
from upslope.objective.models.source import SourceDiscriminator
from upslope.objective.networks import DiscriminatorNetwork
from upslope.types import Paper

h2o = sac.derive(
    name="h2o",
    family="offline",
    paper=Paper(
        "When to Trust Your Simulator: Dynamics-Aware Hybrid Offline-and-Online Reinforcement Learning",
        arxiv="2206.13464",
        year=2022,
    ),
    differs="half of the rows are real, half simulated; two discriminators say how wrong the simulator is, and there errors count "
    "less and values are pressed down; no entropy in the target",
    formula=r"L_Q = E_real (Q - y)² + E_sim w (Q - y)² + c (log Σ_sim ω e^Q - E_real Q),   w = P_real/P_sim(s'|s,a),   "
    r"ω ∝ clip(log P_sim/P_real)",
    use_when="there are few recordings of the real thing, and a simulator whose physics differ",
    data=MixedReplay(demonstrated=0.5),
    models={
        "pair_source": SourceDiscriminator(order=-4),
        "step_source": SourceDiscriminator(order=-3, beside="pair_source", network=DiscriminatorNetwork(sees_following=True)),
        "q": QFunction(target=SoftValue(entropy=False), weight=2.0, penalty=DynamicsGap(), importance=DynamicsRatio()),
        "temperature": dict(sac.models)["temperature"],
    },
    on={"control": {"settings.normalise_observations": True}},
    notes="--task is the simulator, --data the real recordings, --test-task the real world to be judged in. Observations are "
    "normalised by the data, so that the next states tried (models.q.penalty.spread) spread as these do. With half the rows each, "
    "twice the mean over all is the sum of the two means. The released code fits its discriminators to rows of their own, lets "
    "the loss of the second reach the first as well, moves the actor before the critics, and bounds the gap by 1e-45, which single "
    "precision may round to zero. The entropy wanted is SAC's; its default there is 0 (models.temperature.target_entropy).",
)
