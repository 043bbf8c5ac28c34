"""torchao's AdamW8bit, or its rows in float8, in a process of its own: ``python beside_torchao.py GIVEN FOUND``, run by the tests
of moments and of products in eight bits.

It is installed apart (`requirements-apart.txt`), as transformers imports a torchao that it finds, in every process that loads a
model.
"""

import os
import sys
from pathlib import Path

os.environ["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"] = "1"
sys.path.append(str(Path(sys.prefix) / "apart"))

import torch
from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import LinearMMConfig
from torchao.optim import AdamW8bit
from torchao.optim.quant_utils import create_dynamic_map


def main(given: str, found: str) -> None:
    asked = torch.load(given)
    (adam if "starts" in asked else float8)(asked, found)


def float8(asked, found: str) -> None:
    """With a scale for each row; torchao's are what numbers are multiplied with."""
    how = {"scaling_granularity": ScalingGranularity.AXISWISE, "axiswise_dim": -1}
    held = [hp_tensor_to_float8_dynamic(rows, torch.float8_e4m3fn, LinearMMConfig(), **how) for rows in asked["rows"]]
    torch.save([(each._data, 1 / each._scale.squeeze(1)) for each in held], found)


def adam(asked, found: str) -> None:
    torch.compile = lambda function, **how: function  # type: ignore[assignment]  # which would take minutes
    several = [torch.nn.Parameter(start) for start in asked["starts"]]
    optimizer = AdamW8bit(several, **asked["how"])
    for grads in asked["grads"]:
        for parameter, grad in zip(several, grads, strict=True):
            parameter.grad = grad
        optimizer.step()
    held = [{name: (state[name].codes, state[name].scale) for name in ("exp_avg", "exp_avg_sq")}
            for state in map(optimizer.state.__getitem__, several)]  # fmt: skip
    maps = {signed: torch.tensor(create_dynamic_map(signed)) for signed in (True, False)}
    torch.save({"maps": maps, "held": held, "parameters": [each.detach() for each in several]}, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
