"""MiniRL for mixtures of experts: routing replay."""

from upslope.methods.rlvr.minirl import minirl
from upslope.policies.views.routing import RoutingReplay

minirl_r2 = minirl.derive(
    name="minirl-r2",
    differs="in mixtures of experts, learns with the experts that the policy chose before the step's first update",
    formula="MiniRL's loss,   gate_i = I_i exp(s_i) / Σ_j I_j exp(s_j),   I the experts of π_old at each token, s the current "
    "router's logits",
    use_when="the model has experts and a step makes several updates",
    policy=RoutingReplay(),
    notes="The replay called R2, of the learner's own earlier pass. R3, which replays what the sampling engine chose, is not "
    "here: the engine of this library shares the learner's weights and precision, so that it chooses the same experts to "
    "rounding. On a model without experts this is minirl. Try it with --model tiny:experts=4.",
)
