"""The slice budget: how many tokens a language model may look at together, so that their gradient fits into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from upslope.policies.language_model import LanguageModel

LEAST_TOKENS, MOST_CPU_TOKENS = 512, 16384
GPU_SHARE = 20
"""A slice may take this part of a GPU's memory whatever else is there."""
GPU_SHARE_LEFT = 6
"""A slice of our own decoder, whose memory is known, may take this part of what weights and optimiser leave of a GPU. Every slice
launches a whole pass, and a GPU that is through with its tokens sooner waits: with 135M parameters on an H200 an update on 33,000
tokens took 0.35 s in three slices and 0.2 s in one."""


def token_budget(policy: LanguageModel) -> int:
    """Tokens of a slice. A copy of a policy has the same: what is compared with its own past must be cut in the same way."""
    kept = _bytes_kept(policy)
    if policy.device.type == "cuda":
        return max(LEAST_TOKENS, _gpu_bytes(policy) // kept)
    return max(LEAST_TOKENS, min(MOST_CPU_TOKENS, policy.slice_bytes // kept))


def _bytes_kept(policy: LanguageModel) -> int:
    """Bytes that the backward pass keeps of a token."""
    config = policy.model.config.get_text_config()
    width, inner = config.hidden_size, getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    if policy.body is None:  # about three copies of the logits (they, their softmax, its gradient), sixteen activations per feature
        return 4 * (3 * config.vocab_size + 16 * config.num_hidden_layers * width)
    # The stream twice, heads, and gate and up of the inner layer; logits are not kept.
    found = config.num_hidden_layers * (policy.compute_dtype.itemsize * (4 * width + 2 * inner) + 8 * width)
    return found // 4 if policy.recompute else found


def _gpu_bytes(policy: LanguageModel) -> int:
    """Memory of a slice on a GPU. It does not depend on what else is on it now: the same run is cut in the same way."""
    total = torch.cuda.get_device_properties(policy.device).total_memory
    if policy.body is None:
        return total // GPU_SHARE
    own = sum(parameter.numel() * parameter.element_size() for parameter in policy.model.parameters())
    # The model and a copy to compare with; its gradient and the optimiser's two moments, which adapters hardly have.
    taken = own * (2 if policy.adapted else 5)
    return max(total // GPU_SHARE, (total - taken) // GPU_SHARE_LEFT)
