"""Decoding weights: what recorded graphs read stays where it is, whatever is learned; here without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_models import policy_of, step
from torch import Tensor

from upslope.policies import LanguageModel
from upslope.policies.forward.blocks import blocks_of
from upslope.policies.forward.layer_ops import Matrix
from upslope.rollout.decode.weights import Weights

torch.set_num_threads(1)


def read(weights: Weights) -> Iterator[Tensor]:
    """Every tensor that a step of decoding reads."""
    for field in (each for block in weights.blocks for each in block):
        if isinstance(field, Matrix):
            yield field.low
            yield from () if field.adapter is None else (field.adapter.a, field.adapter.b)
        elif field is not None:
            yield field
    yield from (weights.embedding, weights.last_norm, weights.head)


def numbers(weights: Weights) -> list[Tensor]:
    return [tensor.clone() for tensor in read(weights)]


def policy_with(how: str) -> LanguageModel:
    policy = policy_of("qwen2-full")
    if how != "all weights":
        pytest.importorskip("peft", reason="LoRA needs the extra upslope[lora]")
        policy.add_lora(2, seed=0)
    if how == "apart":
        policy.hold_apart(torch.float32)
    return policy


@pytest.mark.parametrize("how", ["all weights", "merged", "apart"])
def test_addresses_stay_and_numbers_follow(how: str) -> None:
    policy = policy_with(how)
    body: Any = policy.body
    weights = Weights(body, 16, torch.float32, fixed=True)
    places, before = [tensor.data_ptr() for tensor in read(weights)], numbers(weights)
    step(policy, 1)
    weights.refresh()
    assert [tensor.data_ptr() for tensor in read(weights)] == places
    fresh = numbers(Weights(body, 16, torch.float32, fixed=False))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(read(weights), fresh, strict=True))
    assert any(not torch.equal(mine, theirs) for mine, theirs in zip(read(weights), before, strict=True))
    other = policy.frozen_copy()
    step(policy, 2)
    weights.refresh()
    assert weights.serves(other.body)  # type: ignore[arg-type]
    weights.refresh(other.body)
    assert [tensor.data_ptr() for tensor in read(weights)] == places
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(read(weights), fresh, strict=True)), "as before the step"


def test_adapters_apart_are_copied_and_nothing_else() -> None:
    """Adapters lie where no update of theirs moves them; the matrices are the model's own."""
    policy = policy_with("apart")
    body: Any = policy.body
    weights = Weights(body, 16, torch.float32, fixed=True)
    for block, own in zip(weights.blocks, blocks_of(body, torch.float32), strict=True):
        for mine, theirs in ((block.qkv, own.qkv), (block.out, own.out), (block.gate_up, own.gate_up), (block.down, own.down)):
            assert mine.low.data_ptr() == theirs.low.data_ptr() and mine.adapter is not None and theirs.adapter is not None
            assert mine.adapter.a.data_ptr() != theirs.adapter.a.data_ptr() and torch.equal(mine.adapter.b, theirs.adapter.b)
    assert weights.embedding.data_ptr() == body.stack.embed_tokens.weight.data_ptr()
    assert weights.head.data_ptr() == body.head.weight.data_ptr()
