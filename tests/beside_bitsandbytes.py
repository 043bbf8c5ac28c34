"""bitsandbytes' NF4 in a process of its own: ``python beside_bitsandbytes.py GIVEN FOUND``, run by the test of weights in 4 bits.

It is installed apart (`requirements-apart.txt`), as peft and transformers import a bitsandbytes that they find.
"""

import os
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling would take half a minute
sys.path.append(str(Path(sys.prefix) / "apart"))

import torch
from bitsandbytes import functional


def main(given: str, found: str) -> None:
    told = []
    for weight in torch.load(given):
        codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
        numbers = functional.dequantize_4bit(codes, state)
        state.dtype = torch.float32
        precise = functional.dequantize_4bit(codes, state)
        told.append((codes.flatten(), state.absmax, state.state2.absmax, state.offset, numbers, precise))
    maps = functional.get_4bit_type("nf4", device="cpu"), functional.create_dynamic_map()
    torch.save({"maps": maps, "told": told}, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
