"""MOORL: a dataset and one's own experience as two tasks of a meta-learner."""

from upslope.methods.control.sac import sac
from upslope.objective.controller.reptile import Reptile
from upslope.objective.data.stored import OneStore
from upslope.types import Paper

moorl = sac.derive(
    name="moorl",
    family="offline",
    paper=Paper("MOORL: A Framework for Integrating Offline-Online Reinforcement Learning", arxiv="2506.09574", year=2025),
    differs="every few updates come from one of the dataset and the run's own experience, drawn at random; then actor and critics "
    "go back half of the way to where these updates began",
    formula=r"θ̄ ← θ̄ + η (θ_K - θ̄)   after K updates of sac on rows of one store;   θ̄ acts",
    use_when="there is a dataset of unknown quality beside the environment, and ten critics as in rlpd cost too much",
    data=OneStore(together=5),
    controller=Reptile(every=5, rate=0.5),
    on={"control": {"settings.horizon": 200, "settings.updates_per_step": 1000}},
    notes="K and η are not published in what was read: 5 and 0.5 are ours. K updates follow every step of the environment, so that "
    "the slow weights act; other ratios are possible, and then weights in between act too. Optimisers keep their moments over a "
    "meta-step, and the critics' slowly following copies follow the quick weights. data.together is K: change both.",
)
