"""The slice budget: how many tokens a language model may look at together, so that their gradient fits into memory.

On a GPU it follows from the plan (`upslope.sizes.settle`) and stands in ``run.toml``; the rules here are those of a CPU, and of
whoever is not part of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from upslope.policies.language_model import LanguageModel

LEAST_TOKENS, MOST_CPU_TOKENS = 512, 16384
CPU_SLICE_BYTES = 4 * 2**30
"""Memory of a slice on a CPU, with its gradient."""
FLOAT32 = 4
GPU_SHARE = 20
"""A slice may take this part of a GPU's memory whatever else is there."""
GPU_SHARE_LEFT = 6
"""A slice of our own decoder, whose memory is known, may take this part of what weights and optimiser leave of a GPU. Every slice
launches a whole pass, and a GPU that is through with its tokens sooner waits: with 135M parameters on an H200 an update on 33,000
tokens took 0.35 s in three slices and 0.2 s in one."""


@dataclass(eq=False)
class SliceBound:
    """The most tokens of a slice. A policy and its copies share one: what is compared with its own past is cut in the same way.

    Fields:
        tokens: 0 leaves it to the rules here.
        told: whether the user knows that memory ran out and made it smaller.
    """

    tokens: int = 0
    told: bool = False


def token_budget(policy: LanguageModel) -> int:
    """Tokens of a slice."""
    if policy.slices.tokens:
        return policy.slices.tokens
    shape, size = _Sizes.of(policy), policy.compute_dtype.itemsize
    if policy.device.type == "cuda":
        total = torch.cuda.get_device_properties(policy.device).total_memory
        return gpu_tokens(shape, size, policy.recompute, total, policy.adapted, policy.apart)
    return cpu_tokens(shape, size, policy.recompute, policy.slice_bytes)


def cpu_tokens(shape: Sized, size: int, recompute: int, memory: int) -> int:
    """Tokens of a slice on a CPU.

    Args:
        size: of a number in products.
        memory: what a slice may take.
    """
    return max(LEAST_TOKENS, min(MOST_CPU_TOKENS, memory // _bytes_kept(shape, size, recompute)))


def gpu_tokens(shape: Sized, size: int, recompute: int, total: int, adapted: bool, apart: bool = False) -> int:
    """Tokens of a slice on a GPU with so much memory, without a plan. It does not depend on what else is on it now."""
    kept = _bytes_kept(shape, size, recompute)
    if not shape.ours:
        return max(LEAST_TOKENS, total // GPU_SHARE // kept)
    # The model and a copy to compare with; its gradient and the optimiser's two moments, which adapters hardly have.
    # Beside adapters that are computed apart there is one set of weights, in half precision, and no copy of it.
    taken = size * shape.parameters if apart else FLOAT32 * shape.parameters * (2 if adapted else 5)
    return max(LEAST_TOKENS, max(total // GPU_SHARE, (total - taken) // GPU_SHARE_LEFT) // kept)


def _bytes_kept(shape: Sized, size: int, recompute: int) -> int:
    """Bytes that the backward pass keeps of a token, about: runs are cut by this since the first, and stay so on a CPU."""
    width, inner = shape.width, shape.inner
    if not shape.ours:  # about three copies of the logits (they, their softmax, its gradient), sixteen activations per feature
        return 4 * (3 * shape.vocabulary + 16 * shape.layers * width)
    # The stream twice, heads, and gate and up of the inner layer; logits are not kept.
    found = shape.layers * (size * (4 * width + 2 * inner) + 8 * width)
    return found // 4 if recompute else found


class Sized(Protocol):
    """Sizes of a model, as `upslope.policies.model_shape.ModelShape` has them."""

    @property
    def parameters(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def inner(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def ours(self) -> bool: ...


class _Sizes(NamedTuple):
    parameters: int
    layers: int
    width: int
    inner: int
    vocabulary: int
    ours: bool

    @staticmethod
    def of(policy: LanguageModel) -> _Sizes:
        config = policy.model.config.get_text_config()
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        on_gpu = policy.device.type == "cuda"  # nobody else asks
        own = sum(parameter.numel() for parameter in policy.model.parameters()) if on_gpu else 0
        return _Sizes(own, config.num_hidden_layers, config.hidden_size, inner, config.vocab_size, policy.body is not None)


def cure(policy: LanguageModel, rows: int) -> str:
    """The setting that makes the gradient of one row, or of a group of so many, take less memory than it does now."""
    layers = getattr(policy.model.config.get_text_config(), "num_hidden_layers", 0)
    if policy.body is not None and policy.recompute < layers:
        return "--recompute all keeps the least of it"
    if rows > 1:
        return f"This method looks at whole groups: --samples-per-task {rows // 2} halves them"
    return "A smaller --max-tokens makes answers shorter, --lora 32 leaves more room for them"
