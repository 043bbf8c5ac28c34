"""Kernels of attention and few rows compiled for an H100 or H200 without one: what does not fit into registers is slow, and right.

Run by its test where Triton is installed. Prints what each kernel stores for want of registers.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from upslope.policies.forward.triton import attention_kernels, kernels, launch
from upslope.rollout.decode import triton_kernels
from upslope.rollout.decode.graph_stepper import ATTEND_STAGES, attend_cut
from upslope.rollout.decode.thin_products import CUTS, FP8_CUTS, most_rows

HOPPER = GPUTarget("cuda", 90, 32)
PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
MOST_SPILLED = 2000
"""Bytes of stores to memory in a kernel for want of registers. Those measured on an H200 as the fastest have up to 930."""
MOST_SHARED = 227 * 2**10
"""Bytes of shared memory that a program can have."""
FLOATS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
HEADS = {"H": 4, "KV": 2}


def spilled(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], warps: int, stages: int, even: tuple[str, ...] = ()
) -> int:
    """Bytes that a kernel stores for want of registers.

    Args:
        even: arguments that are multiples of 16, as a launch would find them.
    """
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    fixed = {(kernel.arg_names.index(name),): value for name, value in constants.items() if name in kernel.arg_names}
    hints = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in even}
    made = triton.compile(
        ASTSource(kernel, signature, fixed, hints), target=HOPPER, options={"num_warps": warps, "num_stages": stages}
    )
    assert made.metadata.shared <= MOST_SHARED, f"{kernel.__name__}: {made.metadata.shared} bytes of shared memory"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(made.asm["ptx"])
        command = [PTXAS, "-arch=sm_90a", "-v", "kernel.ptx", "-o", "kernel.cubin"]
        told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found = re.search(r"(\d+) bytes spill stores", told.stderr)
    assert found is not None
    return int(found[1])


def of_learning(width: int, dtype: torch.dtype) -> list[int]:
    """Forward, back over queries and back over keys."""
    floats = dict.fromkeys(("packed", "out", "grads", "to_packed"), FLOATS[dtype])
    types = {
        **floats,
        **dict.fromkeys(("logsumexps", "means", "sums"), "*fp32"),
        **dict.fromkeys(("blocks", "spans", "work"), "*i32"),
    }
    types |= {"shift": "i32", "scale": "fp32"}
    sizes = HEADS | {"W": width, "WIDE": launch.power(width), "PRECISION": "ieee" if dtype == torch.float32 else "tf32"}
    passes = (attention_kernels.attend, attention_kernels.attend_back_queries, attention_kernels.attend_back_keys)
    return [
        spilled(kernel, types, sizes | {"BLOCK": cut.block, "OTHER": cut.other}, cut.warps, cut.stages)
        for kernel, cut in zip(passes, launch.tiles(width, dtype, 1000), strict=True)
    ]


def of_decoding(width: int, dtype: torch.dtype) -> int:
    """A row's newest token over its cache in pages."""
    floats = dict.fromkeys(("q", "prompt_keys", "prompt_values", "keys", "values", "out"), FLOATS[dtype])
    types = {**floats, **dict.fromkeys(("tops", "sums"), "*fp32"), **dict.fromkeys(("prompt", "start", "length", "step"), "*i64")}
    types |= {"table": "*i32", "scale": "fp32", **dict.fromkeys(("ACROSS", "ROOM", "LEAST"), "i32")}
    wide, precise = launch.power(width), dtype == torch.float32
    block, warps = attend_cut(wide, precise)
    constants = {"KV": 2, "REPEAT": 6, "MANY": 16, "W": width, "WIDE": wide, "BLOCK": block, "PARTS": 1, "PAGE": 64, "EARLY": False}
    constants["PRECISION"] = "ieee" if precise else "tf32"
    return spilled(triton_kernels.attend, types, constants, warps, ATTEND_STAGES)


def of_few_rows(rows: int, eight: bool, kind: str) -> int:
    """A product of few rows, in shares or through a gate."""
    gate = kind != "plain"
    numbers = "*fp8e4nv" if eight else "*bf16"
    types = {"x": numbers, "weight": numbers, "out": "*bf16" if gate else "*fp32", **dict.fromkeys(("x_scales", "scales"), "*fp32")}
    types |= dict.fromkeys(("M", "N", "K", "SHARES"), "i32")
    cut = (FP8_CUTS if eight else CUTS)[9, 0][kind]
    constants = {"ROWS": rows, "BLOCK": cut.block, "INNER": cut.inner, "FP8": eight, "EARLY": True}
    constants["GATE"] = "silu" if gate else "none"
    even = ("x", "weight", "x_scales", "scales", "out", "N", "K")
    return spilled(triton_kernels.thin_product, types, constants, cut.warps, cut.stages, even)


def of_a_norm(wide: int) -> int:
    """Of a stream to which shares are added, in eight bits too."""
    types = {"seen": "*bf16", "codes": "*fp8e4nv", "eps": "fp32", "M": "i32"}
    types |= dict.fromkeys(("x", "shares", "bias", "weight", "scales"), "*fp32")
    constants = {"D": wide, "BLOCK": launch.power(wide), "SHARES": 4, "BIAS": True, "FP8": True, "EARLY": True}
    return spilled(triton_kernels.add_shares_and_norm, types, constants, 4, 3)


def of_rows_in_eight_bits(features: int) -> int:
    """What comes out of a gate, and rows of matrices."""
    types, block = {"x": "*bf16", "codes": "*fp8e4nv", "scales": "*fp32"}, launch.power(features)
    return spilled(kernels.quantize_fp8, types, {"F": features, "BLOCK": block, "EARLY": True}, launch.fp8_warps(block), 3)


if __name__ == "__main__":
    for eight, rows, kind in itertools.product((False, True), (16, 64, 128), ("plain", "gate", "short gate")):
        if rows <= most_rows(eight):
            lost = of_few_rows(rows, eight, kind)
            print("eight bits" if eight else "bfloat16", rows, "rows", kind, lost, flush=True)
            assert lost == 0, f"{rows} rows: {lost} bytes for want of registers"
    in_eight = {width: (of_a_norm(width), of_rows_in_eight_bits(4 * width)) for width in (896, 3584, 8192)}
    print("norms and rows in eight bits", in_eight, flush=True)
    assert max(map(max, in_eight.values())) <= MOST_SPILLED
    for dtype, width in itertools.product(FLOATS, (64, 80, 128, 256)):
        found = [*of_learning(width, dtype), of_decoding(width, dtype)]
        print(str(dtype).removeprefix("torch."), width, *found, flush=True)
        assert max(found) <= MOST_SPILLED, f"heads of {width} features in {dtype}: {found} bytes for want of registers"
