"""An update of AdamW with moments in 32, 16 and 8 bits on a GPU, beside torch's fused AdamW and torchao's in 8 bits.

    python bench/adam_states.py --out bench/results/adam_states.json

Weights are float32 and shaped as those of Qwen2-0.5B. Each side makes the same updates of the same gradients; reported are the
median time of one, the bytes its moments hold, and how far weights end from those of float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from upslope.learners.eight_bit_adam import EightBitAdam
from upslope.learners.low_precision_adam import LowPrecisionAdam

WIDE, INNER, KEYS, LAYERS, WORDS = 896, 4864, 128, 24, 151_936
WARM, TIMED = 3, 20
HOW: dict[str, Any] = {"lr": 1e-5, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}


def shapes(layers: int) -> list[tuple[int, ...]]:
    layer = [(WIDE, WIDE), (WIDE,), (KEYS, WIDE), (KEYS,), (KEYS, WIDE), (KEYS,), (WIDE, WIDE), (INNER, WIDE), (INNER, WIDE),
             (WIDE, INNER), (WIDE,), (WIDE,)]  # fmt: skip
    return [(WORDS, WIDE), (WIDE,), *layer * layers]


def torchaos(groups: Any) -> torch.optim.Optimizer:
    from torchao.optim import AdamW8bit

    return AdamW8bit(groups, bf16_stochastic_round=False, **HOW)


SIDES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "torch, fused, float32": lambda groups: torch.optim.AdamW(groups, fused=True, **HOW),
    "bfloat16": lambda groups: LowPrecisionAdam(groups, seed=0, **HOW),
    "8bit": lambda groups: EightBitAdam(groups, **HOW),
    "torchao, 8 bits": torchaos,
}


def held(state: dict[str, Any]) -> int:
    """Bytes of a parameter's moments."""
    return sum(_bytes(value) for name, value in state.items() if name.startswith("exp_avg"))


def _bytes(value: torch.Tensor) -> int:
    inner = getattr(value, "tensor_attrs", ())  # of torchao's tensors, the codes, their scales and the map
    return sum(_bytes(getattr(value, name)) for name in inner) if inner else value.numel() * value.element_size()


def measure(make: Callable[[Any], torch.optim.Optimizer], layers: int) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Times an update; gives the weights it ends with."""
    random = torch.Generator("cuda").manual_seed(0)
    parameters = [torch.nn.Parameter(0.02 * torch.randn(shape, device="cuda", generator=random)) for shape in shapes(layers)]
    optimizer, times = make([{"params": parameters}]), []
    for number in range(WARM + TIMED):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, device="cuda", generator=random) * 1e-3
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        optimizer.step()
        ended.record()
        torch.cuda.synchronize()
        if number >= WARM:
            times.append(began.elapsed_time(ended) / 1000)
    many = sum(parameter.numel() for parameter in parameters)
    moments = sum(held(optimizer.state[parameter]) for parameter in parameters)
    told = {"seconds": statistics.median(times), "slowest": max(times), "moment_bytes_a_parameter": moments / many}
    return told, [parameter.detach().cpu() for parameter in parameters]


def apart(ours: list[torch.Tensor], theirs: list[torch.Tensor], layers: int) -> float:
    """The length of the difference, as a share of how far ``theirs`` moved."""
    random = torch.Generator("cuda").manual_seed(0)
    began = [(0.02 * torch.randn(shape, device="cuda", generator=random)).cpu() for shape in shapes(layers)]
    off = sum(float((our - their).square().sum()) for our, their in zip(ours, theirs, strict=True))
    moved = sum(float((their - start).square().sum()) for their, start in zip(theirs, began, strict=True))
    return (off / moved) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--layers", type=int, default=LAYERS)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    exact: list[torch.Tensor] = []
    for name, make in SIDES.items():
        try:
            told, weights = measure(make, given.layers)
        except ImportError:
            print(f"{name}: not installed", flush=True)
            continue
        exact = exact or weights
        found[name] = told | {"apart": apart(weights, exact, given.layers)}
        print(name, found[name], flush=True)
    device, version = torch.cuda.get_device_name(), torch.__version__
    parameters = sum(torch.Size(shape).numel() for shape in shapes(given.layers))
    result = {"row": "adam_states", "device": device, "torch": version, "parameters": parameters, "sides": found,
              "command": "python bench/adam_states.py"}  # fmt: skip
    print(json.dumps(result))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
