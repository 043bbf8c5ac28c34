"""Attention kernels compiled for an H100 or H200 without one: what does not fit into registers is slow, and right.

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

from upslope.policies.forward.triton import attention_kernels, launch
from upslope.rollout.decode import triton_kernels
from upslope.rollout.decode.graph_stepper import ATTEND_STAGES, attend_cut

HOPPER = GPUTarget("cuda", 90, 32)
PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
MOST_SPILLED = 2000
"""Bytes of stores to memory in a kernel for want of registers. Those measured on an H200 as the fastest have up to 930."""
FLOATS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
HEADS = {"H": 4, "KV": 2}


def spilled(kernel: Any, types: dict[str, str], constants: dict[str, Any], warps: int, stages: int) -> int:
    """Bytes that a kernel stores for want of registers."""
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    fixed = {(kernel.arg_names.index(name),): value for name, value in constants.items() if name in kernel.arg_names}
    made = triton.compile(ASTSource(kernel, signature, fixed), target=HOPPER, options={"num_warps": warps, "num_stages": stages})
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
    kernels = (attention_kernels.attend, attention_kernels.attend_back_queries, attention_kernels.attend_back_keys)
    return [
        spilled(kernel, types, sizes | {"BLOCK": cut.block, "OTHER": cut.other}, cut.warps, cut.stages)
        for kernel, cut in zip(kernels, launch.tiles(width, dtype, 1000), strict=True)
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


if __name__ == "__main__":
    for dtype, width in itertools.product(FLOATS, (64, 80, 128, 256)):
        found = [*of_learning(width, dtype), of_decoding(width, dtype)]
        print(str(dtype).removeprefix("torch."), width, *found, flush=True)
        assert max(found) <= MOST_SPILLED, f"heads of {width} features in {dtype}: {found} bytes for want of registers"
