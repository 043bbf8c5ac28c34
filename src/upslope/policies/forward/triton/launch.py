"""Launches of the Triton kernels of a decoder layer: buffers, grids, how each is cut. `helps` says where they can be called."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from upslope.policies.forward.nf4 import BLOCK, GROUP, code_values, scale_values
from upslope.policies.forward.packing import Layout

NORM_PROGRAMS = 2048
"""At most so many programs share the rows of a norm's way back; each leaves a row of sums."""
GATE_BLOCK, GATE_WARPS = 512, 2
LOGIT_BLOCK, LOGIT_WARPS = 2048, 4
BACK_QUERIES = 512
ADAM_BLOCK = 1024
CODE_BLOCK, CODE_ROWS = 256, 4
UNPACKED_BLOCKS, UNPACK_WARPS = 64, 4
FP8_NUMBERS = 32
"""How kernels are cut. Of queries that look back at a prompt, a program of the backward pass walks at most so many, and that for
every head that shares the keys: with 2,048 of them the others had ended long before (0.44 ms a layer of 4,096 tokens). Of a row
that is written in eight bits a thread holds so many numbers."""


@functools.cache
def triton_found() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def helps(x: Tensor) -> bool:
    """Whether there are kernels for tensors like this one."""
    return x.is_cuda and x.dtype != torch.float64 and triton_found()


def power(size: int) -> int:
    """The power of two that holds so many."""
    return 1 << max(0, size - 1).bit_length()


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``x + delta`` and its norm in ``dtype``."""
    from upslope.policies.forward.triton import kernels

    total = x if delta is None else torch.empty_like(x)
    seen = torch.empty(x.shape, dtype=dtype, device=x.device)
    given, wide = x if delta is None else delta, x.shape[1]
    kernels.add_norm[(len(x),)](x, given, weight, total, seen, eps, wide, power(wide), delta is not None, num_warps=4)
    return total, seen


def norm_back(
    to_seen: Tensor, total: Tensor, weight: Tensor, to_total: Tensor, eps: float, delta: torch.dtype | None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of ``x``, of ``delta`` (if there was one, in its precision) and of the norm's weight, and the norm once more."""
    from upslope.policies.forward.triton import kernels

    rows, wide = total.shape
    each = -(-rows // NORM_PROGRAMS)
    programs = -(-rows // each)
    to_x, seen = torch.empty_like(total), torch.empty_like(to_seen)
    to_delta = None if delta is None else (to_x if delta == to_x.dtype else torch.empty_like(total, dtype=delta))
    sums = torch.empty(programs, wide, device=total.device)
    kernels.norm_back[(programs,)](
        to_seen, total, weight, to_total.contiguous(), to_x, to_x if to_delta is None else to_delta, seen, sums,
        eps, rows, each, wide, power(wide), to_delta is not None and to_delta is not to_x, num_warps=4,
    )  # fmt: skip
    return to_x, to_delta, sums.sum(0), seen


def rope(packed: Tensor, cos: Tensor, sin: Tensor, rotated_heads: int, back: bool = False) -> Tensor:
    """Heads ``[S, heads, width]``, the first of them rotated by their positions, or back."""
    from upslope.policies.forward.triton import kernels

    packed, out = packed.contiguous(), torch.empty_like(packed, memory_format=torch.contiguous_format)
    tokens, heads, width = packed.shape
    kernels.rope[(tokens,)](packed, out, cos, sin, heads, rotated_heads, power(heads), width, power(width // 2), back, num_warps=2)
    return out


def gated(both: Tensor, activation: str) -> Tensor:
    from upslope.policies.forward.triton import kernels

    rows, features = both.shape[0], both.shape[1] // 2
    product = both.new_empty(rows, features)
    grid = (rows, -(-features // GATE_BLOCK))
    kernels.gated[grid](both, product, features, activation, GATE_BLOCK, num_warps=GATE_WARPS)
    return product


def gated_back(both: Tensor, to_product: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradient of ``both``, and the product once more."""
    from upslope.policies.forward.triton import kernels

    features = both.shape[1] // 2
    to_both, product = torch.empty_like(both), torch.empty_like(to_product)
    grid = (len(both), -(-features // GATE_BLOCK))
    kernels.gated_back[grid](both, to_product, to_both, product, features, activation, GATE_BLOCK, num_warps=GATE_WARPS)
    return to_both, product


def attend(packed: Tensor, layout: Layout, heads: int, scale: float, rows_only: bool) -> tuple[Tensor, Tensor]:
    """Attention ``[S, heads, width]`` of packed queries, keys and values, or of the rows' own alone; and the logsumexps."""
    from upslope.policies.forward.triton import attention_kernels as kernels

    cut = _Cut(packed, layout, heads, scale, rows_only)
    out = packed.new_empty(len(packed) - cut.shift, heads, packed.shape[2])
    logsumexps = torch.empty(len(packed), heads, device=packed.device)
    asking = cut.asking(cut.forward)
    kernels.attend[(len(asking), heads)](
        packed, out, logsumexps, asking, layout.spans, *cut.sizes, *cut.forward[:2], **cut.forward.how
    )
    return out, logsumexps


def attend_back(
    packed: Tensor, out: Tensor, grad: Tensor, logsumexps: Tensor, layout: Layout, heads: int, scale: float, rows_only: bool
) -> Tensor:
    """The gradient of ``packed``."""
    from upslope.policies.forward.triton import attention_kernels as kernels

    cut, grad = _Cut(packed, layout, heads, scale, rows_only), grad.contiguous()
    means, to_packed = torch.empty_like(logsumexps), torch.empty_like(packed)
    if rows_only:
        to_packed[: cut.shift, :heads] = 0.0
    asking = cut.asking(cut.queries)
    kernels.attend_back_queries[(len(asking), heads)](
        packed, out, grad, logsumexps, means, to_packed, asking, layout.spans, *cut.sizes, *cut.queries[:2], **cut.queries.how
    )
    work, shared, shares = layout.back_work(cut.keys.block, BACK_QUERIES)
    sums = torch.empty(max(1, shares), cut.key_heads, 2, cut.keys.block, packed.shape[2], device=packed.device)
    kernels.attend_back_keys[(len(work), cut.key_heads)](
        packed, grad, logsumexps, means, to_packed, sums, work, layout.spans, *cut.sizes, *cut.keys[:2], **cut.keys.how
    )
    if shares:
        kernels.add_shares[(len(shared), cut.key_heads)](
            sums, to_packed, shared, layout.spans, heads, cut.key_heads, packed.shape[2], cut.wide, cut.keys.block, num_warps=4
        )
    return to_packed


class Tiles(NamedTuple):
    """How a kernel of attention is cut: tokens of a program, tokens it walks at once, and how it runs."""

    block: int
    other: int
    warps: int
    stages: int

    @property
    def how(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


WIDE_TILES = (Tiles(64, 32, 4, 3), Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2))
"""Of heads of 65 to 128 features in half precision: the forward pass, and back over queries and over keys."""
PRECISE_TILES = {64: (64, 32), 128: (32, 16)}
"""Tokens of a program and tokens it walks at once in float32, by the most features of a head: what fits into registers of so many
warps. Products are no work for tensor cores there; of 64 or 32 tokens and 2 or 4 warps a thread stored up to 72 KB, by ptxas."""
WIDEST_PRECISE_TILE = (16, 16)
PRECISE_WARPS = 8


class _Cut:
    """How attention is cut into blocks. Measured on an H200 with bfloat16."""

    def __init__(self, packed: Tensor, layout: Layout, heads: int, scale: float, rows_only: bool):
        width = packed.shape[2]
        self.layout, self.rows_only = layout, rows_only
        self.key_heads = (packed.shape[1] - heads) // 2
        self.shift = layout.shared if rows_only else 0
        self.forward, self.queries, self.keys = tiles(width, packed.dtype, layout.longest)
        precision = "ieee" if packed.dtype == torch.float32 else "tf32"
        self.wide = power(max(16, width))
        self.sizes = (self.shift, scale, heads, self.key_heads, width, self.wide, precision)

    def asking(self, tiles: Tiles) -> Tensor:
        """Blocks of tokens that ask."""
        found = self.layout.blocks(tiles.block)
        return found[self.layout.prompt_blocks(tiles.block) :] if self.rows_only else found


def tiles(width: int, dtype: torch.dtype, longest: int) -> tuple[Tiles, Tiles, Tiles]:
    """Of the forward pass, and of the backward pass over queries and over keys."""
    most = max(16, power(longest))
    if dtype.itemsize > 2:
        block, other = next((cut for features, cut in PRECISE_TILES.items() if width <= features), WIDEST_PRECISE_TILE)
        precise = Tiles(min(block, most), min(other, most), PRECISE_WARPS, 2)
        return precise, precise, precise
    if 64 < width <= 128 and longest > 64:
        return WIDE_TILES
    block = min(32 if width > 64 else 64, most)
    # A third block under way at once pays where three fit into a multiprocessor: back over the keys it saves a fifth (H200).
    same = Tiles(block, block, 4 if block > 32 or width > 128 else 2, 3 if block == 64 else 2)
    return same, same, same


def chosen(
    logits: Tensor, ids: Tensor, temperature: Tensor | None, logp: Tensor, normaliser: Tensor, entropy: Tensor, want_entropy: bool
) -> None:
    """Writes the log-probabilities of chosen tokens, the logsumexps and, on request, the entropies of rows of logits."""
    from upslope.policies.forward.triton import kernels

    rows, vocabulary = logits.shape
    kernels.chosen[(rows,)](
        logits, ids, logp if temperature is None else temperature, logp, normaliser, entropy, vocabulary,
        temperature is not None, want_entropy,
        min(LOGIT_BLOCK, power(vocabulary)), num_warps=LOGIT_WARPS,
    )  # fmt: skip


def chosen_back(
    logits: Tensor, ids: Tensor, temperature: Tensor | None, normaliser: Tensor, entropy: Tensor | None, to_logp: Tensor,
    to_entropy: Tensor | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The loss's grad in the logits."""
    from upslope.policies.forward.triton import kernels

    rows, vocabulary = logits.shape
    block = min(LOGIT_BLOCK, power(vocabulary))
    grad = torch.empty(rows, vocabulary, dtype=dtype, device=logits.device)
    with_entropy = entropy is not None and to_entropy is not None
    kernels.chosen_back[(rows, -(-vocabulary // block))](
        logits, ids, normaliser if temperature is None else temperature, normaliser, entropy if with_entropy else normaliser,
        to_logp, to_entropy if with_entropy else to_logp, grad, vocabulary, temperature is not None, with_entropy, block,
        num_warps=LOGIT_WARPS,
    )  # fmt: skip
    return grad


def adam(
    held: Tensor, grad: Tensor, mean: Tensor, square: Tensor, lr: float, beta1: float, beta2: float, correction: float, eps: float,
    decay: float, seed: int,
) -> None:  # fmt: skip
    """An update of AdamW with moments in bfloat16: `upslope.learners.low_precision_adam.move`."""
    from upslope.policies.forward.triton import kernels

    grid = (-(-len(held) // ADAM_BLOCK),)
    how = (lr, beta1, beta2, correction, eps, decay)
    kernels.adam[grid](held, grad, mean, square, len(held), *how, seed, ADAM_BLOCK, num_warps=4)


def adam_8bit(
    held: Tensor, grad: Tensor, means: Tensor, mean_scales: Tensor, squares: Tensor, square_scales: Tensor, tables: Tensor,
    lr: float, first: float, second: float, correction: float, eps: float, decay: float,
) -> None:  # fmt: skip
    """An update of AdamW with moments in eight bits: `upslope.learners.eight_bit_adam.move`."""
    from upslope.policies.forward.triton import kernels

    grid = (-(-len(mean_scales) // CODE_ROWS),)
    moments, how = (means, mean_scales, squares, square_scales), (lr, first, second, correction, eps, decay)
    kernels.adam_8bit[grid](held, grad, *moments, tables, len(held), *how, CODE_ROWS, CODE_BLOCK, num_warps=4)


def quantize_fp8(x: Tensor, codes: Tensor, scales: Tensor, early: bool = False) -> None:
    """Rows in eight bits: `upslope.policies.forward.fp8.quantize`.

    Args:
        early: it may be launched before the kernel before it has ended.
    """
    from upslope.policies.forward.triton import kernels

    rows, features = x.shape
    block = power(features)
    kernels.quantize_fp8[(rows,)](x, codes, scales, features, block, early, num_warps=fp8_warps(block), launch_pdl=early)


def fp8_warps(block: int) -> int:
    """Of a program that writes a row of so many numbers in eight bits."""
    return min(16, max(1, block // (32 * FP8_NUMBERS)))


def unpack_nf4(codes: Tensor, scales: Tensor, tops: Tensor, offsets: Tensor, places: Tensor, out: Tensor) -> None:
    """Numbers in four bits, written one behind the other: those of a `upslope.policies.forward.packed_matrix.PackedMatrix`."""
    from upslope.policies.forward.triton import kernels

    # Without fused multiplications and additions it gives the bits that plain torch gives.
    kernels.unpack_nf4[(len(tops), GROUP // UNPACKED_BLOCKS)](
        codes, scales, tops, offsets, places, code_values(codes.device), scale_values(codes.device), out, UNPACKED_BLOCKS, BLOCK,
        num_warps=UNPACK_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
