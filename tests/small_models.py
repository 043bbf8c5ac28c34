"""Small random models of several kinds, prompts for them, and rows of what was drawn: for tests of the engine and of fast paths."""

from __future__ import annotations

import torch

from upslope.policies import LanguageModel, TextInputs
from upslope.policies.tiny import character_tokenizer
from upslope.types import Completions, Trajectories, View

KINDS = ("llama", "qwen2", "qwen2-full", "qwen3", "gemma", "gemma2", "gpt2")
"""With the caches they bring. GPT-2 is the one to notice a wrong position: rotary embeddings see only differences of them."""
PROMPTS = [[1, 5, 9], [1, 4, 4, 8, 12, 20, 7], [1], [1, 5, 9], [1, 18, 17, 16, 15]]
"""Ragged, one of them twice."""


def policy_of(kind: str) -> LanguageModel:
    """A random model whose distributions are far from uniform; sliding windows are shorter than the sequences."""
    import transformers as hf

    sizes = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
             "eos_token_id": 2, "initializer_range": 0.5}  # fmt: skip
    old = {
        "vocab_size": 23,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "initializer_range": 0.5,
        "eos_token_id": 2,
    }
    config, model = {
        "gpt2": (hf.GPT2Config(**old), hf.GPT2LMHeadModel),
        "llama": (hf.LlamaConfig(**sizes), hf.LlamaForCausalLM),
        "qwen2": (hf.Qwen2Config(**sizes, use_sliding_window=True, sliding_window=5, max_window_layers=1), hf.Qwen2ForCausalLM),
        "qwen2-full": (hf.Qwen2Config(**sizes), hf.Qwen2ForCausalLM),
        "qwen3": (hf.Qwen3Config(**sizes), hf.Qwen3ForCausalLM),
        "gemma": (hf.GemmaConfig(**sizes), hf.GemmaForCausalLM),
        "gemma2": (hf.Gemma2Config(**sizes, sliding_window=5, query_pre_attn_scalar=4), hf.Gemma2ForCausalLM),
    }[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        policy = LanguageModel(model(config).float(), character_tokenizer("abcdefghijklmnopqrs"), kind)
    policy.stop_ids = frozenset({2, 6, 11})  # Several, so that rows of every model end early.
    return policy


def step(policy: LanguageModel, seed: int) -> None:
    """Moves the weights that learn, far enough to be seen."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable()["policy"]:
            parameter.add_(torch.randn(parameter.shape, generator=random))


def rows_of(policy: LanguageModel, prompts: list[list[int]], n: int, done: Completions, temperature: float) -> Trajectories:
    width = max(map(len, prompts))
    padded = torch.tensor([[policy.pad_id] * (width - len(p)) + p for p in prompts]).repeat_interleave(n, 0)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]).repeat_interleave(n, 0)
    group = torch.arange(len(prompts)).repeat_interleave(n)
    return Trajectories(
        sampled=done.sampled,
        reward=torch.zeros(len(group)),
        group=group,
        task=group,
        behavior=View(done.logp, done.entropy),
        action=done.tokens,
        temperature=torch.full_like(done.logp, temperature),
        inputs=TextInputs(padded, mask),
    )
