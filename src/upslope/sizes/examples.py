"""Models of usual sizes, shaped like Qwen2: for the table of what fits (``docs/sizes.md``) and for tests. None has any weights."""

from __future__ import annotations

from typing import NamedTuple

import torch

from upslope.policies.model_shape import ModelShape


class Example(NamedTuple):
    """Sizes of a model."""

    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool
    vocabulary: int


EXAMPLES = {
    "0.5B": Example(896, 4864, 24, 14, 2, True, 151936),
    "1.5B": Example(1536, 8960, 28, 12, 2, True, 151936),
    "3B": Example(2048, 11008, 36, 16, 2, True, 151936),
    "7.6B": Example(3584, 18944, 28, 28, 4, False, 152064),
    "14B": Example(5120, 13824, 48, 40, 8, False, 152064),
}


def example_shape(example: Example) -> ModelShape:
    """The shape of a model with these sizes."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=example.vocabulary, hidden_size=example.width, intermediate_size=example.inner,
        num_hidden_layers=example.layers, num_attention_heads=example.heads, num_key_value_heads=example.kv_heads,
        tie_word_embeddings=example.tied,
    )  # fmt: skip
    with torch.device("meta"):
        found = ModelShape.of(Qwen2ForCausalLM(config), ours=True)
    assert found is not None
    return found
