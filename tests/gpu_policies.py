"""Models on a GPU, for its tests."""

from __future__ import annotations

import torch

from upslope.policies.language_model import LanguageModel
from upslope.policies.tiny import character_tokenizer


def policy_of(kind: str, precise: bool) -> LanguageModel:
    import transformers as hf

    sizes = {"vocab_size": 301, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
             "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2}  # fmt: skip
    family = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma"}[kind]
    if kind != "qwen2":
        sizes["head_dim"] = 16
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = getattr(hf, f"{family}ForCausalLM")(getattr(hf, f"{family}Config")(**sizes))
    policy = LanguageModel(model.float(), character_tokenizer("abc"), kind).to("cuda")
    policy.stop_ids = frozenset(range(5, 12))
    policy.precise = precise
    return policy


def wide_policy(heads: int = 4, key_heads: int = 2, width: int = 128, tied: bool = True, vocabulary: int = 5000) -> LanguageModel:
    """Heads as wide as real models have them, and a vocabulary of several stretches, in half precision."""
    import transformers as hf

    config = hf.LlamaConfig(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=key_heads, head_dim=width, max_position_embeddings=16384, initializer_range=0.1,
        tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = hf.LlamaForCausalLM(config)
    policy = LanguageModel(model.float(), character_tokenizer("abc"), "wide").to("cuda")
    policy.stop_ids = frozenset({7})
    return policy


def step_of_adapters(policy: LanguageModel, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random).to("cuda"))


def different_letters(prompts: list[str], responses: list[str], answers: list[str]) -> list[float]:
    return [len(set(response)) / 4 for response in responses]
