"""SERL: RLPD with the settings that made robots learn within an hour."""

from upslope.methods.offline.rlpd import rlpd
from upslope.objective.critics import QFunction, SmallestOfSome, SoftValue, Temperature
from upslope.objective.data.stored import MixedReplay
from upslope.objective.networks import MLPEnsemble
from upslope.policies.control.networks import Stochastic
from upslope.rollout.acting import UniformFirst
from upslope.types import Paper

serl = rlpd.derive(
    name="serl",
    paper=Paper("SERL: A Software Suite for Sample-Efficient Robotic Reinforcement Learning", arxiv="2401.16013", year=2024),
    differs="tanh and layer norm in actor and critics; a temperature that begins at 0.01 and entropy that no target counts; four "
    "updates of the critics for a step of the environment and for one of the actor; 300 random steps first",
    formula=r"y = r + γ min over 2 of 10 Q̄_i(s', a'~π),   L_π = α log π(a|s) - mean_i Q_i(s, a)",
    use_when="a robot has a few demonstrations and a reward that only says when it is done",
    data=MixedReplay(demonstrated=0.5, capacity=200_000),
    policy=Stochastic(activation="tanh", layer_norm=True, every=4),
    models={
        "q": QFunction(
            network=MLPEnsemble(members=10, activation="tanh", layer_norm=True), target=SoftValue(entropy=False),
            over=SmallestOfSome(some=2), weight=0.1,
        ),
        "temperature": Temperature(start=0.01, every=4),
    },
    acting=UniformFirst(steps=300),
    on={
        "control": {"settings.horizon": 100, "settings.updates_per_step": 400},
        "control-images": {"data.gamma": 0.96, "data.augment": "RandomCrop()"},
    },
    notes="The suite's learner runs beside its actor as fast as it can; here a step of the environment is four updates. It wants "
    "half of the entropy that SAC wants (models.temperature.target_entropy), draws the two critics with replacement and moves the "
    "temperature by another function of its weight. From images its discount is 0.96 and they are cropped at random; its encoder "
    "is a ResNet trained beforehand, ours a small one that is learned, for the actor and for the critics each its own. A reward "
    "learned from demonstrations: --set models.success=SuccessClassifier --set reward=LearnedSuccess. With the classifier's "
    "knobs adversarial=true, label_smoothing=0.2, mixup=true and gradient_penalty=10 it is VICE; the suite's own learns from goal "
    "pictures against the policy's, each picture twice, on features of a pretrained encoder with dropout, where here states "
    "of demonstrations that are not done count as not done too and both kinds count the same however many there are. The slope of "
    "one that its penalty asks for is one logit in a unit of the observation: observations whose differences are small want a "
    "smaller weight. The pair of policies that needs no reset: an environment made with up.reset_free, and policy.pair, "
    "models.q.network.pair and models.temperature.pair. The suite has two learners with a store and a minibatch each; here both "
    "agents learn from the rows of their own task in one minibatch.",
)  # fmt: skip
