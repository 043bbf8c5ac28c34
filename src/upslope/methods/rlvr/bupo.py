"""BuPO: first the policy of a low layer, then the whole model."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.aggregate import TokenMean
from upslope.objective.controller.warm import ThenWhole
from upslope.objective.surrogate import PessimisticClip
from upslope.policies.views.layer import Layer
from upslope.types import Paper

bupo = grpo.derive(
    name="bupo",
    paper=Paper(
        "Bottom-up Policy Optimization: Your Language Model Policy Secretly Contains Internal Policies",
        arxiv="2512.19673",
        year=2025,
    ),
    differs="for the first tenth of the run the loss is that of a low layer's own policy; mean over tokens, no KL",
    formula="L = (1/ΣT) Σ_i Σ_t -min(r A, clip(r, 1-ε, 1+ε) A),   r = π^l/π^l_old while t <= S, then π/π_old,   π^l = softmax(W "
    "h^l / T)",
    use_when="a deep model starts to learn slowly: low layers first, in a short phase",
    policy=Layer(layer=6),
    surrogate=PessimisticClip(low=0.2, high=0.2, dual=10.0),
    aggregate=TokenMean(),
    regularize=None,
    controller=ThenWhole(after=0.1),
    notes="Answers are sampled and scored with the whole model throughout; the ratio compares the layer with itself before the "
    "step. The released code puts no norm between layer and head (policy.final_norm=true does) and counts layers from 0: its 5 is "
    "our 6. It trains 30 of 300 steps at layer 6 of Qwen3-4B; a shallower model needs a lower one, and one with fewer layers "
    "gives its last. The entropies inside of blocks, which the paper analyses, are not measured.",
)
