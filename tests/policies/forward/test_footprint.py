"""What is counted of a pass is what autograd really keeps of it."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from upslope.policies.forward import decoder
from upslope.policies.forward.architecture import architecture
from upslope.policies.forward.footprint import kept_bytes, kept_of_token
from upslope.policies.forward.logprobs import chosen_logp
from upslope.policies.forward.packing import lay_out
from upslope.policies.model_shape import ModelShape

WIDE = {"hidden_size": 96, "intermediate_size": 250, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
FLAT = {"hidden_size": 64, "intermediate_size": 100, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
FAMILIES = {
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM),
    "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM),
    "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM),
}


def kept_by_autograd(model, recompute: int, monkeypatch) -> tuple[int, int, int]:
    """Bytes of activations, each stretch of memory once; and the shared and own tokens they are of."""
    draw = torch.Generator().manual_seed(0)
    prompt = torch.randint(3, 20, (2, 37), generator=draw).repeat_interleave(3, 0)
    action = torch.randint(3, 20, (6, 29), generator=draw)
    layout, body = lay_out(prompt, torch.ones_like(prompt), action, torch.full((6,), 29)), architecture(model)
    shared, found, held = layout.shared, {}, []

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() and len(tensor) in (len(layout.ids), len(layout.ids) - shared):  # of tokens, and no weights
            memory = tensor.untyped_storage()
            found[memory.data_ptr()] = memory.nbytes()
            held.append(tensor)  # so that no other takes its place
        return tensor

    checkpoint = decoder.checkpoint

    def checkpointed(layer, *arguments, **more):
        for tensor in (*arguments[2:4], *arguments[4]):  # the stream, what is added to it, the rotations: kept as they are
            if tensor is not None:
                seen(tensor)
        return checkpoint(layer, *arguments, **more)

    monkeypatch.setattr(decoder, "checkpoint", checkpointed)
    with torch.autograd.graph.saved_tensors_hooks(seen, lambda tensor: tensor):
        hidden = decoder.hidden_states(body, layout, torch.float32, recompute)
        chosen_logp(hidden, body.head.weight, layout.packed(action), None, True, torch.float32)
    return sum(found.values()), shared, len(layout.ids) - shared


@pytest.mark.parametrize("recompute", [0, 1, 3])
@pytest.mark.parametrize("sizes", [WIDE, FLAT], ids=["wide", "flat"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_count_is_what_autograd_keeps(family: str, sizes: dict[str, int], recompute: int, monkeypatch):
    config, make = FAMILIES[family]
    model = make(config(vocab_size=23, num_hidden_layers=3, **sizes))
    kept, shared, own = kept_by_autograd(model, recompute, monkeypatch)
    shape = ModelShape.of(model, ours=True)
    assert kept_bytes(shape, 4, on_gpu=False, shared=shared, own=own, recompute=recompute) == pytest.approx(kept, rel=0.02)


def test_the_count_on_a_gpu_written_out():
    """1.5 billion parameters, shaped like Qwen2: per layer two streams of float32, queries, keys, values and attention's result,
    gate and up in bfloat16."""
    with torch.device("meta"):
        model = hf.Qwen2ForCausalLM(hf.Qwen2Config(
            vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
            num_key_value_heads=2, tie_word_embeddings=True,
        ))  # fmt: skip
    shape = ModelShape.of(model, ours=True)
    assert (
        shape.parameters == 1_543_714_304
        and shape.tied
        and shape.adapters(8) == 8 * 28 * (2 * (1536 + 256) + 2 * (1536 + 1536) + 2 * (1536 + 8960) + 8960 + 1536)
    )
    layer = 2 * 4 * 1536 + 2 * (12 + 4) * 128 + 2 * 12 * 128 + 4 * 12 + 2 * 2 * 8960
    ends = 8 + 8 * 128 + 8 * 1536 + 4 + 8 + 8
    assert kept_of_token(shape, 2, on_gpu=True) == 28 * layer + ends
    assert kept_of_token(shape, 2, on_gpu=True, recompute=28) == 28 * 4 * 1536 + 27 * 2 * 1536 + ends
    assert kept_of_token(shape, 2, on_gpu=True, recompute=99) == kept_of_token(shape, 2, on_gpu=True, recompute=28)
