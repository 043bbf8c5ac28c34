"""A2PR: TD3+BC, drawn to the better of the recorded action and one that an autoencoder of good actions makes."""

from upslope.methods.offline.td3_bc import td3_bc
from upslope.objective.critics import CautiousValue, QFunction, SmoothedAction
from upslope.objective.models.action_vae import GoodActions
from upslope.objective.regularize.data import TowardsBetter
from upslope.types import Paper

a2pr = td3_bc.derive(
    name="a2pr",
    paper=Paper(
        "Adaptive Advantage-Guided Policy Regularization for Offline Reinforcement Learning", arxiv="2405.19909", year=2024
    ),
    differs="the actor is drawn to the better of the recorded action and one made by an autoencoder of good actions, and only "
    "where either is better than its state",
    formula=r"L_π = -λ Q_1(s, μ(s)) + m 1[Q_1(s, â) ≥ V or Q_1(s, a) > V] 1/D ‖μ(s) - ā‖²,   ā = â if Q_1(s, â) ≥ Q_1(s, a) else a,"
    r"   â = VAE(s, μ(s)),   L_VAE = 1[Q_1(s, a) > V] 1/D ‖â - a‖² + ½ KL",
    use_when="few of the recorded episodes are good",
    regularize=TowardsBetter(),
    models={
        "q": QFunction(target=SmoothedAction(), lag_every=2),
        "vae": GoodActions(),
        "value": CautiousValue(),
    },
    notes="As the released code has it: the two conditions are a logical or (their sum there never reaches 2), distances are means "
    "over dimensions, the autoencoder learns at 1e-3, and gradients reach the policy through what the autoencoder makes of its "
    "action (regularize.detach_guide=true stops them). m is regularize.weight; the paper has 0.5 to 1 by dataset. With "
    "regularize.made_by and regularize.value empty it is td3-bc.",
)
