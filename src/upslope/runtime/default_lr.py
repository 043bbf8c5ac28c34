"""The learning rate a text model gets where none is given."""

from __future__ import annotations

FULL_LR, FULL_LR_TINY = 1e-6, 2e-4
"""Learning rates of full training in text."""
LORA_STEP, LORA_STEP_TINY, LORA_RANKS = 800, 160, (8, 64)
"""What the learning rate of full training is multiplied by for adapters, times their rank; and the ranks below and above which that
changes no more.

Adapters begin as ``W + s B A`` with B zero, A random with rows of about the input's length over sqrt(3), and s = alpha / r = 2
here (`upslope.policies.adapters`). Adam moves each entry of B by the learning rate, so a step moves a layer's output in
proportion to ``s r lr``: at constant s the best learning rate falls as 1 / r, at constant alpha it does not depend on r (Chen et
al. 2026, "Learning rate scaling across LoRA ranks"). "LoRA without regret" (Schulman et al. 2025), with alpha = 32, finds ten
times that of full training best, fifteen times in short runs, for supervised and for reinforcement learning. With alpha = 2 r
that is their setting at rank 16: 10 times there is 160 / r. For tiny it is what was measured: reverse:length=3, forty steps,
accuracy 0.37 to 0.48 at rank 16 and ten times (0.46 with full training, 0.44 at five times, 0.40 at once); rank 64 lost at ten
times what it won at three. For other models the 1e-6 of full training is a cautious one (TRL's, for models of billions of
parameters): SmolLM2 at rank 16 went from 0.06 to 0.15 in sixty steps at twice that and to 0.84 at a hundred times. Fifty times
there is half of what worked: 800 / r. Below rank 8 it stays: Adam moves A as fast as B, and its entries are small to begin with."""


def default_lr(model: str, lora: int) -> float:
    """The learning rate for a text model, whole or with adapters of rank ``lora``."""
    tiny = model.split(":")[0] == "tiny"
    full = FULL_LR_TINY if tiny else FULL_LR
    if not lora:
        return full
    least, most = LORA_RANKS
    return float(f"{full * (LORA_STEP_TINY if tiny else LORA_STEP) / min(max(lora, least), most):.3g}")
