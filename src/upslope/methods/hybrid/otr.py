"""One-token rollouts: supervised fine-tuning as a policy gradient on the policy's own tokens."""

from upslope.methods.hybrid.sft import sft
from upslope.objective.surrogate.one_token import OneTokenRollout
from upslope.types import Paper

otr = sft.derive(
    name="otr",
    paper=Paper("One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient", arxiv="2509.26313", year=2025),
    differs="at each place the policy samples tokens of its own; the demonstrated one earns 1, any other a small penalty",
    formula="L = -(1/Σ_i T_i) Σ_i Σ_t (1/K) Σ_k R(a'_k) log π(a'_k | s_it),   a'_k ~ π(.|s_it)^(1/κ),   "
    "R(a') = 1 if a' = y*_it else β",
    use_when="fine-tuning on demonstrations must not cost the model what else it can do",
    surrogate=OneTokenRollout(),
    notes="With surrogate.temperature=1 the mean gradient is that of sft times (1 - β) π(y*): tokens that the model finds unlikely "
    "hardly learn, so a model that cannot begin to say what is demonstrated should be taught by sft first. K, β and κ are recalled "
    "from the paper, not checked against its code. Sampling costs time: the logits are computed twice more in a step, and K tokens "
    "are drawn for each one learned from.",
)
