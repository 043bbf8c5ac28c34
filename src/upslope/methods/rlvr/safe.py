"""SAFE: a pessimistic value, and a KL penalty that starts at a threshold which follows the reward."""

import math

from upslope.methods.control.ppo import ppo
from upslope.objective.advantage.value_baseline import ValueBaseline
from upslope.objective.controller.phases import PhasedThreshold
from upslope.objective.models.pessimistic import PessimisticValue
from upslope.objective.regularize import EntropyBonus
from upslope.objective.regularize.hinge import HingeKL
from upslope.objective.shape.rows import WhitenRows
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Paper

safe = ppo.derive(
    name="safe",
    family="rlvr",
    paper=Paper("SAFE: Stable Alignment Finetuning with Entropy-Aware Predictive Control for RLHF", year=2026),
    differs="the lower of two values as the baseline; a squared KL above a threshold that a PID loop and the run's phase move",
    formula=r"L = mean_t [ -min(r A, clip(r) A) + c_v (h(V - R) + h(V_clip - R))/2 - c_e H ] + 0.1 g max(KL - θ, 0)²,   "
    r"A = R - V whitened,   V = soft min(V₁, V₂),   g = max(0.5, H₀/(H + 0.1)),   θ from the reward's velocity",
    use_when="the reward can be gamed: the policy may move freely near its start and is called back when it runs away",
    advantage=ValueBaseline(),
    shape=WhitenRows(),
    surrogate=PessimisticClip(low=0.2, high=0.2, dual=math.inf),
    regularize=(EntropyBonus(weight=0.01), HingeKL()),
    models={"value": PessimisticValue()},
    controller=PhasedThreshold(),
    on=None,
    notes="The released code adds the penalty as a plain number, which has no gradient: regularize.1.detached=true does that; the "
    "default has one. Its threshold uses the step's own reward, ours that of the step before; its value sees the last token too, "
    "ours all before it, and ours is fitted at every token. Its heads have a hidden layer, ours are linear on the normalised "
    "trunk. Left out, as the released trainer never reads them: the averaged target critic and the step preview (a limit on the KL "
    "a step would lead to). Rewards are not normalised. It makes 2 passes (--passes 2) and uses one learning rate for policy and "
    "value. An entropy floor of 2 suits a large vocabulary; with characters the penalty is amplified from the start. No arXiv "
    "number was found, and the year is that of the released code.",
)
