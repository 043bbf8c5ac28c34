"""The shape of a language model: every size that memory and disk depend on, and none of its numbers.

It can be had of a model that holds no weights (torch's device ``meta``) as well as of one that does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from upslope.policies.forward.plain import attends_fully


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a causal language model, without adapters and further heads.

    Fields:
        parameters: all of them, tied ones once.
        joined: of the layers' matrices, those that share an input with others (queries, keys, values; gate and up).
        single: of the layers' matrices, the others.
        linear: inputs and outputs of all matrices that adapters go to, added up: a rank costs so many parameters.
        inner: features inside a layer.
        head_norms: whether queries and keys have norms of their own.
        ours: whether it is computed by our own decoder, and not by `transformers`.
        eager: whether `transformers` writes out attention scores.
        shares_prompts: whether `transformers` is given each prompt once for all rows that continue it.
    """

    parameters: int
    joined: int
    single: int
    linear: int
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    tied: bool
    head_norms: bool
    ours: bool
    eager: bool
    shares_prompts: bool

    @property
    def head(self) -> int:
        """Parameters of the head, and of the embedding."""
        return self.vocabulary * self.width

    @property
    def projected(self) -> int:
        """Features of a token's queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_width

    def adapters(self, rank: int) -> int:
        """Parameters of adapters of this rank on every matrix but the head."""
        return rank * self.linear

    @staticmethod
    def of(model: Any, ours: bool) -> ModelShape | None:
        """The shape of a model; None where it calls its sizes by other names, so that nothing can be foreseen.

        Args:
            ours: whether our own decoder computes it.
        """
        try:
            return _shape(model, ours)
        except (AttributeError, TypeError):
            return None


def _shape(model: Any, ours: bool) -> ModelShape:
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    adapters = [getattr(module, name, {}) for module in model.modules() for name in ("lora_A", "lora_B")]
    adapted = {id(each) for held in adapters for each in held.values()}
    linear = [module for module in linear if id(module) not in adapted]
    parameters = sum(value.numel() for name, value in model.named_parameters() if "lora_" not in name)
    width, heads, joined, single = config.hidden_size, config.num_attention_heads, 0, 0
    if ours:
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        for layer in inner.model.layers:
            asked, mlp = layer.self_attn, layer.mlp
            joined += sum(map(_matrix, (asked.q_proj, asked.k_proj, asked.v_proj, mlp.gate_proj, mlp.up_proj)))
            single += sum(map(_matrix, (asked.o_proj, mlp.down_proj)))
    return ModelShape(
        parameters=parameters,
        joined=joined,
        single=single,
        linear=sum(module.in_features + module.out_features for module in linear),
        layers=config.num_hidden_layers,
        width=width,
        inner=getattr(config, "intermediate_size", None) or 4 * width,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_width=getattr(config, "head_dim", None) or width // heads,
        vocabulary=config.vocab_size,
        tied=head is not None and head.weight is model.get_input_embeddings().weight,
        head_norms=ours and hasattr(inner.model.layers[0].self_attn, "q_norm"),
        ours=ours,
        eager=getattr(config, "_attn_implementation", None) == "eager",
        shares_prompts=not ours and attends_fully(model),
    )


def _matrix(module: Any) -> int:
    return getattr(module, "base_layer", module).weight.numel()
