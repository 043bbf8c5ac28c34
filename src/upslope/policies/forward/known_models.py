"""Model families that our decoder knows: every tensor it reads and every setting it heeds or may ignore.

A list of what is known, not of what is not: a tensor or a setting that appears with a model of tomorrow is left to `transformers`
until somebody has looked at it, instead of being ignored without a word.
"""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = frozenset({"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"})
"""Tensors outside of layers."""
ATTENTION, INNER = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
LAYER = frozenset(
    {"input_layernorm.weight", "post_attention_layernorm.weight"}
    | {f"self_attn.{name}.weight" for name in ATTENTION}
    | {f"mlp.{name}.weight" for name in INNER}
)
"""Tensors that every layer has."""
OPTIONAL = (
    frozenset({f"self_attn.{name}.bias" for name in ATTENTION[:3]}),
    frozenset({"self_attn.o_proj.bias"}),
    frozenset({"self_attn.q_norm.weight", "self_attn.k_norm.weight"}),
)
"""Tensors that all layers may have, each of these sets as a whole or not at all. Biases of the inner layer are not computed."""
BUFFERS = frozenset({"model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq", "model.embed_tokens.embed_scale"})
_ADAPTER = re.compile(r"\.lora_[AB]\.[^.]+\.weight$")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")

USED = frozenset({
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "rms_norm_eps", "rope_parameters", "max_position_embeddings", "tie_word_embeddings", "layer_types",
    "sliding_window", "attention_bias", "model_type",
})  # fmt: skip
"""Settings that are heeded: by the decoder, by what decides whether it is taken, or by the shapes of the tensors."""
NEUTRAL: dict[str, tuple[object, ...]] = {
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "use_bidirectional_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "is_decoder": (True, False, None),
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "chunk_size_feed_forward": (0, None),
    "pruned_heads": ({}, None),
    "partial_rotary_factor": (1.0, None),
    "rope_interleaved": (False, None),
    "rope_scaling": (None,),
    "quantization_config": (None,),
}
"""Settings that change what is computed unless they have one of these values."""
HARMLESS = frozenset({
    # names, versions, and what was saved with what
    "_name_or_path", "name_or_path", "architectures", "transformers_version", "auto_map", "tokenizer_class", "task_specific_params",
    "_attn_implementation_autoset", "unsloth_version", "unsloth_fixed", "is_llama_config", "transformers.js_config", "torch_dtype",
    "dtype", "torchscript", "attn_implementation", "_attn_implementation", "use_flash_attn", "model_max_length", "finetuning_task",
    # tokens and generation
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id", "prefix",
    # how a model begins and is trained; dropout is off here
    "initializer_range", "pretraining_tp", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "classifier_dropout",
    # what a forward pass returns, and classification
    "use_cache", "return_dict", "output_hidden_states", "output_attentions", "id2label", "label2id", "num_labels", "problem_type",
    # heeded only with windows, which are refused; and by Gemma's ancestors, whose activation is `hidden_act` now
    "max_window_layers", "hidden_activation",
    # rotary angles are asked of the model itself, which has read these into `rope_parameters`
    "rope_theta", "original_max_position_embeddings",
})  # fmt: skip
"""Settings that change no log-probability."""
ROPE_SETTINGS = frozenset({
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
})  # fmt: skip
"""Of rotary embeddings that depend on the position alone: their angles are the model's own."""


def unknown_tensor(model: Any) -> str:
    """The first tensor that the decoder would not read, as a reason; empty if it reads all of them."""
    layers: dict[int, set[str]] = {}
    for name, _ in model.named_parameters():
        plain = name.replace(".base_layer.", ".")
        found = _LAYER.fullmatch(_ADAPTER.sub(".weight", plain))
        if found is not None:
            layers.setdefault(int(found[1]), set()).add(found[2])
        elif plain not in OUTSIDE:
            return f"its tensor {name!r} is not known here"
    known = LAYER.union(*OPTIONAL)
    for number, names in layers.items():
        if strange := sorted(names - known):
            return f"its tensor 'model.layers.{number}.{strange[0]}' is not known here"
        partly = [each for each in OPTIONAL if each & names and not each <= names]
        if partly or LAYER - names or names != layers[0]:
            return f"layer {number} has other tensors than the first, or only some of those that belong together"
    for name, _ in model.named_buffers():
        if name not in BUFFERS:
            return f"its buffer {name!r} is not known here"
    return ""


def unknown_setting(config: Any) -> str:
    """The first setting that the decoder does not know, or whose value it cannot follow, as a reason; empty if there is none."""
    for name, value in config.to_dict().items():
        if name in USED or name in HARMLESS:
            continue
        if name not in NEUTRAL:
            return f"its config sets {name!r}, which is not known here"
        if value not in NEUTRAL[name]:
            return f"its config sets {name!r} to {value!r}"
    for name, value in (getattr(config, "rope_parameters", None) or {}).items():
        if name not in ROPE_SETTINGS and not (name == "partial_rotary_factor" and value in (1, None)):
            return f"its rotary embedding sets {name!r} to {value!r}"
    return ""
