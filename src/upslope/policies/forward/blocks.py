"""Decoder blocks, as our passes want them: projections of the same input as one matrix, in the precision of the products."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from upslope.policies.forward.architecture import Architecture
from upslope.policies.forward.attention_cpu import Attended
from upslope.policies.forward.layer_ops import Matrix, apply_rope, gate_activation, gated_linear, gathered, linear, normed_linear
from upslope.policies.forward.low_rank import joined, lay_together, low_rank_parts, low_ranks
from upslope.policies.forward.packed_matrix import PackedMatrix, Scratch, pack_together, packed_part, plain_weight


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


def blocks_of(body: Architecture, dtype: torch.dtype) -> list[Block]:
    """The layers from the model's parameters, with gradient where it is enabled."""
    layers = [(layer, layer.self_attn, layer.mlp) for layer in body.layers]
    linear = _Linear(
        [(inner.q_proj, inner.k_proj, inner.v_proj) for _, inner, _ in layers],
        [(inner.o_proj,) for _, inner, _ in layers],
        [(mlp.gate_proj, mlp.up_proj) for _, _, mlp in layers],
        [(mlp.down_proj,) for _, _, mlp in layers],
    )
    qkv, out, gate_up, down, qkv_bias, out_bias = _held(body, linear, dtype) or _made(body, linear, dtype)
    columns = (
        [norm_weight(body, layer.input_layernorm) for layer, _, _ in layers],
        qkv,
        qkv_bias,
        _head_norms(body, [inner for _, inner, _ in layers], "q_norm"),
        _head_norms(body, [inner for _, inner, _ in layers], "k_norm"),
        out,
        out_bias,
        [norm_weight(body, layer.post_attention_layernorm) for layer, _, _ in layers],
        gate_up,
        down,
    )
    return [Block(*fields) for fields in zip(*columns, strict=True)]


class _Linear(NamedTuple):
    """Linear modules that share an input, of each layer. The first two kinds may have biases."""

    asks: list[tuple[Any, ...]]
    outs: list[tuple[Any, ...]]
    opens: list[tuple[Any, ...]]
    downs: list[tuple[Any, ...]]


def _made(body: Architecture, linear: _Linear, dtype: torch.dtype) -> tuple[list[Any], ...]:
    """Matrices of all four kinds, and the biases of the first two, from the modules as they are now."""
    matrices, biases = (_apart, _apart_biases) if body.apart else (_matrices, _biases)
    return *(matrices(kind, dtype) for kind in linear), *(biases(kind, dtype) for kind in linear[:2])


def _held(body: Architecture, linear: _Linear, dtype: torch.dtype) -> tuple[list[Any], ...] | None:
    """The same of a model that holds them, with its head behind them; None of any other."""
    if not body.reads_held(dtype):
        return None
    kinds = [[tuple(module.weight for module in together) for together in kind] for kind in linear]
    for kind in linear[:2]:
        has_bias = kind and kind[0][0].bias is not None
        kinds.append([tuple(module.bias for module in together) for together in kind] if has_bias else [])
    matrices = iter(body.held_matrices([*itertools.chain(*kinds), (body.head.weight,)], dtype))
    return tuple([*itertools.islice(matrices, len(kind))] if kind else [None] * len(linear.asks) for kind in kinds)


def _matrices(modules: list[tuple[Any, ...]], dtype: torch.dtype) -> list[Matrix]:
    return gathered([tuple(map(matrix_of, together)) for together in modules], dtype) if modules else []


def _biases(modules: list[tuple[Any, ...]], dtype: torch.dtype) -> list[Matrix] | list[None]:
    if not modules or getattr(modules[0][0], "base_layer", modules[0][0]).bias is None:
        return [None] * len(modules)
    return gathered([tuple(getattr(module, "base_layer", module).bias for module in together) for together in modules], dtype)


def _apart(modules: list[tuple[Any, ...]], dtype: torch.dtype) -> list[Matrix]:
    """Matrices that never change, where they are, with their adapters beside them."""
    beside = low_ranks([low_rank_parts(together) for together in modules], dtype) if modules else []
    return [_still(together, dtype)._replace(adapter=adapter) for together, adapter in zip(modules, beside, strict=True)]


def _still(together: tuple[Any, ...], dtype: torch.dtype) -> Matrix:
    """The matrix of modules whose weights never change."""
    held = packed_part(together[0].base_layer)
    if held is not None:
        packed = held.matrix.in_dtype(dtype)
        return Matrix(packed.nothing, (), packed=packed)
    return Matrix(joined([module.base_layer.weight for module in together], dtype), ())


def _apart_biases(modules: list[tuple[Any, ...]], dtype: torch.dtype) -> list[Matrix] | list[None]:
    if not modules or modules[0][0].base_layer.bias is None:
        return [None] * len(modules)
    return [Matrix(joined([module.base_layer.bias for module in together], dtype), ()) for together in modules]


def hold_once(body: Architecture, device: torch.device, dtype: torch.dtype, packed: bool = False) -> None:
    """Moves the layers' weights, of a model with adapters those that they are beside, to where whoever computes reads them: each
    once, in the precision of products, and those that share an input one behind the other.

    Args:
        packed: matrices are held in four bits.
    """
    scratch = Scratch()
    for own in _together(body):
        if packed:
            pack_together(own, device, dtype, scratch)
        else:
            lay_together([module.weight for module in own], device, dtype)
        if own[0].bias is not None:
            lay_together([module.bias for module in own], device, dtype)
    if packed and (held := packed_part(next(_together(body), [None])[0])) is not None:
        held.matrix.unpacked()  # so that the scratch is there before a graph is recorded


@torch.no_grad()
def round_to_nf4(body: Architecture) -> None:
    """Puts into the place of the layers' matrices what their codes in four bits stand for."""
    for module in (module for own in _together(body) for module in own):
        weight = module.weight
        matrix = PackedMatrix.of([weight], weight.device, torch.float32, Scratch())
        weight.copy_(matrix.part(0))


def _together(body: Architecture) -> Iterator[list[Any]]:
    """The layers' linear modules, those that share an input together; of a model with adapters what these are beside."""
    for layer in body.layers:
        inner, mlp = layer.self_attn, layer.mlp
        for together in (
            (inner.q_proj, inner.k_proj, inner.v_proj),
            (inner.o_proj,),
            (mlp.gate_proj, mlp.up_proj),
            (mlp.down_proj,),
        ):
            yield [getattr(module, "base_layer", module) for module in together]


def _head_norms(body: Architecture, inners: list[Any], name: str) -> list[Tensor] | list[None]:
    if not inners or not hasattr(inners[0], name):
        return [None] * len(inners)
    return [norm_weight(body, getattr(inner, name)) for inner in inners]


def norm_weight(body: Architecture, module: Any) -> Tensor:
    """What a norm multiplies with."""
    weight = module.weight.float() if module.weight.dtype.itemsize == 2 else module.weight
    return weight + body.norm_offset if body.norm_offset else weight


def matrix_of(module: Any) -> Tensor:
    """The matrix a linear module multiplies with, its adapters' share included."""
    if isinstance(module, nn.Linear):
        return module.weight
    weight = plain_weight(module.base_layer)
    for name in module.active_adapters:
        if name in module.lora_A:
            weight = weight + module.lora_B[name].weight @ module.lora_A[name].weight * module.scaling[name]
    return weight


class Products(NamedTuple):
    """What a layer computed, of as many tokens as asked: all that a backward pass needs and that takes time to compute."""

    heads: Tensor
    """Queries, keys and values ``[S, heads + 2 * kv_heads, width]``, rotated by their positions."""
    attended: Attended
    """``[S, heads, width]`` and ``[S, heads]``."""
    rest: AfterAttention

    def tensors(self) -> tuple[Tensor, ...]:
        return self.heads, *self.attended, *self.rest

    @staticmethod
    def of(tensors: Iterable[Tensor]) -> Products:
        heads, out, logsumexp, *rest = tensors
        return Products(heads, Attended(out, logsumexp), AfterAttention(*rest))


class AfterAttention(NamedTuple):
    """What a layer computed behind its attention."""

    mixed: Tensor
    """``[S, features]``, to be added to the stream."""
    both: Tensor
    """Gate and up ``[S, 2 * inner]``."""
    gate_act: Tensor
    """Of the gate ``[S, inner]``: `layer_ops.gate_activation`; kernels on a GPU compute it anew and there is none."""
    delta: Tensor
    """``[S, features]``, to be added to the stream by the next layer."""


NOTHING: Any = AfterAttention(None, None, None, None)  # type: ignore[arg-type]


def projected(
    body: Architecture, block: Block, x: Tensor, delta: Tensor | None, rope: tuple[Tensor, Tensor], known: Tensor | None = None,
    into: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``x + delta``, and a layer's queries, keys and values of it ``[S, heads + 2 * kv_heads, width]``, rotated by their positions.

    Args:
        rope: cosines and sines of the places ``[S, 1, width]``.
        known, into: the heads, if they were computed before, or where to compute them; only of models that do not norm them.
    """
    known, into = (None if heads is None else heads.flatten(1) for heads in (known, into))
    x, both = normed_linear(x, delta, block.before, body.eps, block.qkv, block.qkv_bias, known, into)
    both = both.view(len(x), body.heads + 2 * body.kv_heads, body.width)
    if block.q_norm is not None and block.k_norm is not None:
        q, k, v = both.split([body.heads, body.kv_heads, body.kv_heads], 1)
        q, k = (
            F.rms_norm(part.to(norm.dtype), part.shape[-1:], norm, body.eps).to(both.dtype)
            for part, norm in ((q, block.q_norm), (k, block.k_norm))
        )
        both = torch.cat([q, k, v], 1)
    return x, apply_rope(both, *rope, body.heads + body.kv_heads, known is not None)


def after(
    body: Architecture,
    block: Block,
    x: Tensor,
    seen: Tensor,
    known: AfterAttention | None = None,
    into: AfterAttention | None = None,
) -> tuple[Tensor, AfterAttention]:
    """The rest of a layer, behind its attention ``seen [S, heads * width]``: the next one is given the stream and ``delta``."""
    known, into = known or NOTHING, into or NOTHING
    mixed = linear(seen, block.out, block.out_bias, known.mixed, into.mixed)
    x, both = normed_linear(x, mixed, block.between, body.eps, block.gate_up, known=known.both, into=into.both)
    opened: Any = gate_activation(both, body.activation, into.gate_act) if known.gate_act is None else known.gate_act
    return x, AfterAttention(mixed, both, opened, gated_linear(both, opened, body.activation, block.down, known.delta, into.delta))
