"""Tiny models of every family of causal language models that `transformers` has, with weights away from their trivial starts."""

from __future__ import annotations

from typing import Any

import torch

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "ffn_dim": 40, "d_model": 32, "n_embd": 32,
    "n_layer": 2, "n_head": 4, "n_positions": 64,
    "decoder_layers": 2, "encoder_layers": 2, "decoder_ffn_dim": 40, "encoder_ffn_dim": 40,
    "decoder_attention_heads": 4, "encoder_attention_heads": 4, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "moe_num_experts": 4, "moe_k": 2, "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24, "n_group": 1, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1, "embedding_size": 32, "d_ff": 40,
    "ffn_hidden_size": 40, "num_layers": 4, "num_heads": 4, "rotary_dim": 4, "mamba_n_heads": 8, "mamba_d_head": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {"num_key_value_heads": 4, "head_dim": 8}
"""Families that compress keys and values have as many heads of each."""


def small_config(kind: str, **changes: Any) -> Any:
    """The default config of a family with every size that it has made small."""
    from transformers import CONFIG_MAPPING

    family = CONFIG_MAPPING[kind]
    default = family()

    def sizes(config: Any) -> dict[str, Any]:
        known = config.to_dict()
        found = {name: size for name, size in SMALL.items() if name in known}
        found |= {name: size for name, size in LATENT.items() if name in known and "kv_lora_rank" in known}
        return found | ({"is_decoder": True} if "is_decoder" in known else {})

    if "text_config" in getattr(default, "sub_configs", {}):
        return family(text_config=sizes(default.text_config), **changes)
    return family(**sizes(default) | changes)


def small_model(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():  # norms and biases away from their trivial starts
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model
