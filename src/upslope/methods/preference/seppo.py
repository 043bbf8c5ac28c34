"""Preferences without rejected answers: those of earlier policies stand in for them."""

from upslope.evolve.challengers import Challengers
from upslope.methods.preference.dpo import dpo
from upslope.objective.ratio.references import AgainstReferences
from upslope.objective.references import Snapshot
from upslope.objective.surrogate.semi_policy import SemiPolicyPreference
from upslope.rollout.given import FromAnswers
from upslope.types import Paper

seppo = dpo.derive(
    name="seppo",
    paper=Paper("SePPO: Semi-Policy Preference Optimization for Diffusion Alignment", arxiv="2410.05255", year=2024),
    differs="only good answers are given: an earlier policy, drawn from a pool, writes the other one and is the reference; "
    "it loses where the policy is ahead of it, and is learned from where it is not",
    formula=r"y_l ~ π_ref, π_ref of a pool,   L = -log σ(β [log π(y_w)/π_ref(y_w) - s log π(y_l)/π_ref(y_l)]),   "
    r"s = sign(log π(y_w)/π_ref(y_w))",
    use_when="there are good answers and nothing to compare them with, and imitating them alone has stopped to help",
    rollout=FromAnswers(),
    data=Challengers(),
    ratio=AgainstReferences(("pool",), (1.0,)),
    references={"pool": Snapshot(every=30, age="newest", keep=7, choose="random")},
    surrogate=SemiPolicyPreference(),
    notes="The autoregressive form: the paper's denoising error is minus the log-likelihood here, and its weight of time steps is "
    "gone; its β T of 2000 to 5000 has no counterpart, and β = 0.1 is DPO's. A pool of seven checkpoints, one every 30 "
    "updates, each as likely, is the paper's, read from reviews; each costs the memory of what is trained "
    "(references.pool.keep), and one is drawn for a whole step. A sign of zero counts as +1: on the first steps the reference "
    "is the policy itself. `learned_too` is the share of pairs of sign -1. Without the sign (surrogate.flip=false) it is DPO "
    "against earlier policies (SPIN).",
)
