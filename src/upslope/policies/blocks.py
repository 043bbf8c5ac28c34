"""A model's layers as its decoder wants them: projections of the same input as one matrix, in the precision of the products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from upslope.policies.anatomy import Anatomy
from upslope.policies.nodes import Matrix, gated_linear, linear, normed_linear, turned


class Block(NamedTuple):
    """A layer. Norm weights are as they multiply, in float32 or better."""

    before: Tensor
    qkv: Matrix
    qkv_bias: Matrix | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Matrix
    out_bias: Matrix | None
    between: Tensor
    gate_up: Matrix
    down: Matrix


def blocks_of(body: Anatomy, dtype: torch.dtype) -> Iterator[Block]:
    """The layers, one after the other, from the model's parameters, with gradient where it is enabled."""
    for layer in body.layers:
        inner, mlp = layer.self_attn, layer.mlp
        asks = (inner.q_proj, inner.k_proj, inner.v_proj)
        yield Block(
            norm_weight(body, layer.input_layernorm),
            _matrix(asks, dtype),
            _bias(asks, dtype),
            norm_weight(body, inner.q_norm) if hasattr(inner, "q_norm") else None,
            norm_weight(body, inner.k_norm) if hasattr(inner, "k_norm") else None,
            _matrix((inner.o_proj,), dtype),
            _bias((inner.o_proj,), dtype),
            norm_weight(body, layer.post_attention_layernorm),
            _matrix((mlp.gate_proj, mlp.up_proj), dtype),
            _matrix((mlp.down_proj,), dtype),
        )


def _matrix(modules: tuple[Any, ...], dtype: torch.dtype) -> Matrix:
    return Matrix.of(tuple(matrix_of(module) for module in modules), dtype)


def _bias(modules: tuple[Any, ...], dtype: torch.dtype) -> Matrix | None:
    found = [getattr(module, "base_layer", module).bias for module in modules]
    return None if found[0] is None else Matrix.of(tuple(found), dtype)


def norm_weight(body: Anatomy, module: Any) -> Tensor:
    """What a norm multiplies with."""
    weight = module.weight.to(torch.promote_types(module.weight.dtype, torch.float32))
    return weight + body.norm_offset if body.norm_offset else weight


def matrix_of(module: Any) -> Tensor:
    """The matrix a linear module multiplies with, its adapters' share included."""
    if not hasattr(module, "base_layer"):
        return module.weight
    weight = module.base_layer.weight
    for name in module.active_adapters:
        if name in module.lora_A:
            weight = weight + module.lora_B[name].weight @ module.lora_A[name].weight * module.scaling[name]
    return weight


def projected(body: Anatomy, block: Block, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values ``[S, heads, width]`` of a layer, turned to their places."""
    both = normed_linear(x, block.before, body.eps, block.qkv, block.qkv_bias)
    both = both.view(len(x), body.heads + 2 * body.kv_heads, body.width)
    turning = body.heads + body.kv_heads
    v = both[:, turning:]
    if block.q_norm is None or block.k_norm is None:
        heads = turned(both[:, :turning], *turn)
        return heads[:, : body.heads], heads[:, body.heads :], v
    q, k = both[:, : body.heads], both[:, body.heads : turning]
    q, k = (
        F.rms_norm(part.to(norm.dtype), part.shape[-1:], norm, body.eps).to(both.dtype)
        for part, norm in ((q, block.q_norm), (k, block.k_norm))
    )
    return turned(q, *turn), turned(k, *turn), v


def after(body: Anatomy, block: Block, x: Tensor, out: Tensor) -> Tensor:
    """The rest of a layer, behind its attention ``out [S, heads * width]``."""
    x = x + linear(out, block.out, block.out_bias)
    both = normed_linear(x, block.between, body.eps, block.gate_up)
    return x + gated_linear(both, body.activation, block.down)
