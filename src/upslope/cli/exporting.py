"""The command that writes what was trained for use elsewhere."""

from __future__ import annotations

import argparse

from upslope.errors import UserError


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", metavar="RUN", help="the folder of a run")
    add("--to", required=True, metavar="DIR", help="text: a new folder, for from_pretrained, vLLM, llama.cpp or peft")
    add(
        "--merge",
        action="store_true",
        help="text: adapters become part of the weights (else they are written alone, for peft)",
    )
    add("--checkpoint", default="", metavar="WHICH", help="text: best, last or a step (best where it was kept, else last)")
    add("--dtype", default="", metavar="TYPE", help="text: bfloat16, float16 or float32 (bfloat16; of adapters alone float32)")
    add("--gguf", action="store_true", help="text: also one .gguf file for llama.cpp; Llama, Qwen2 and Qwen3")


def export(flags: argparse.Namespace) -> int:
    """Writes a run's result."""
    from upslope.api import load

    run = load(flags.path)
    if run.table["domain"] != "text":
        raise UserError(f"{run.table['task']} is an environment, whose network is no language model.")
    print(run.export(flags.to, merge=flags.merge, checkpoint=flags.checkpoint, dtype=flags.dtype, gguf=flags.gguf))
    return 0
