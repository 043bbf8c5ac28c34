"""The architecture of a Llama-like model of `transformers`: where its layers are, and how its family differs from Llama.

The decoder (`upslope.policies.forward.decoder`) and the engine compute such models themselves, from the model's own weights. A
model that is not understood to the last detail is left to `transformers`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from upslope.policies.forward import held_weights
from upslope.policies.forward.gradient_sums import update_now
from upslope.policies.forward.held_weights import HeldWeights
from upslope.policies.forward.known_models import unknown_setting, unknown_tensor
from upslope.policies.forward.layer_ops import Matrix

FAMILIES = {
    "LlamaForCausalLM": 0.0,
    "MistralForCausalLM": 0.0,
    "Qwen2ForCausalLM": 0.0,
    "Qwen3ForCausalLM": 0.0,
    "GemmaForCausalLM": 1.0,
}
"""Models that are understood, and what each adds to the weights of its norms."""
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings that depend on the position alone, not on how long the text became."""
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh"}
"""Our names for theirs."""
_said: set[str] = set()


@dataclass(eq=False)
class Architecture:
    """A model's parts and sizes."""

    model: Any
    """The causal language model; with adapters, the one inside them."""
    heads: int
    kv_heads: int
    width: int
    """Of a head."""
    scale: float
    """Of the products of queries and keys."""
    eps: float
    norm_offset: float
    activation: str
    """One of `upslope.policies.forward.layer_ops.ACTIVATIONS`."""
    apart: bool = False
    """Adapters are computed beside the weights, which never change, and not merged into them."""
    held: HeldWeights | None = None
    """All matrices in the precision of products, for learning and sampling alike, where they are held so."""

    @property
    def stack(self) -> Any:
        return self.model.model

    @property
    def layers(self) -> Any:
        return self.stack.layers

    @property
    def head(self) -> nn.Linear:
        return self.model.lm_head

    def rotations(self, positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[positions, width]``; the first half of the sines is negated, for `layer_ops.apply_rope`."""
        with torch.no_grad():
            places = torch.arange(positions, device=device).unsqueeze(0)
            cos, sin = self.stack.rotary_emb(torch.zeros((), device=device), places)
        half = self.width // 2
        sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], 1)
        return cos[0].to(dtype), sin.to(dtype)

    def holds_weights(self, dtype: torch.dtype) -> bool:
        """Whether the model holds its weights in this precision too: on a GPU, if all of them learn in another."""
        weight = self.head.weight
        if not held_weights.serves(weight) or weight.dtype == dtype or self.apart:
            return False
        return self._all_learn() if self.held is None else self.held.learns

    def reads_held(self, dtype: torch.dtype) -> bool:
        """Whether the pass that begins here reads what the model holds: in an update, or without a gradient."""
        return (update_now() is not None or not torch.is_grad_enabled()) and self.holds_weights(dtype)

    def held_matrices(self, several: list[tuple[Tensor, ...]], dtype: torch.dtype) -> list[Matrix]:
        """The matrices of these parts as the model holds them from now on; the head is the last."""
        if self.held is None or not self.held.holds(several, dtype):
            self.held = None  # its memory is free before the new one takes some
            self.held = HeldWeights(several, dtype)
        return self.held.of_now()

    def held_head(self, dtype: torch.dtype) -> Tensor | None:
        """The head in this precision, if it is read from what the model holds, as it was when the layers were last asked for."""
        return self.held.matrices[-1].low if self.held is not None and self.reads_held(dtype) else None

    def _all_learn(self) -> bool:
        return all(isinstance(each, nn.Parameter) and each.requires_grad for each in self.model.parameters())


def architecture(model: Any) -> Architecture | None:
    """The parts of a model, or None, once with a warning that says why, where `transformers` must compute it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    reason = _strange(inner)
    if reason:
        if reason not in _said:
            _said.add(reason)
            warnings.warn(f"{type(inner).__name__} runs through transformers, which is right but slower: {reason}.", stacklevel=3)
        return None
    config = inner.config
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Architecture(
        inner,
        heads,
        getattr(config, "num_key_value_heads", None) or heads,
        width,
        width**-0.5,
        config.rms_norm_eps,
        FAMILIES[type(inner).__name__],
        ACTIVATIONS[config.hidden_act],
    )


def _strange(model: Any) -> str:
    """What about the model is not understood; empty if nothing."""
    if type(model).__name__ not in FAMILIES or not type(model).__module__.startswith("transformers.models."):
        return f"only {', '.join(name.removesuffix('ForCausalLM') for name in FAMILIES)} are computed here"
    config = model.config
    kinds = getattr(config, "layer_types", None)
    if any(kind != "full_attention" for kind in kinds) if kinds else getattr(config, "sliding_window", None):
        return "some layers attend to a window only"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPES:
        return f"its rotary embedding is of the kind {rope!r}"
    if config.hidden_act not in ACTIVATIONS:
        return f"its activation is {config.hidden_act!r}"
    if type(model.lm_head) is not nn.Linear or model.lm_head.bias is not None:
        return "its head is not a plain matrix"
    if getattr(model, "is_quantized", False):
        return "its weights are quantised"
    return unknown_tensor(model) or unknown_setting(config)
