"""The command that writes what was trained for use elsewhere."""

from __future__ import annotations

import argparse


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", metavar="RUN", help="the folder of a run")
    add("--to", required=True, metavar="PATH", help="text: a new folder; control: policy.onnx, or policy.pt for TorchScript")
    add("--merge", action="store_true", help="text: adapters become part of the weights; else they are written alone, for peft")
    add("--checkpoint", default="", metavar="WHICH", help="best or last, for text also a step (best where it was kept, else last)")
    add("--dtype", default="", metavar="TYPE", help="text: bfloat16, float16 or float32 (bfloat16; of adapters alone float32)")
    add("--gguf", action="store_true", help="text: also one .gguf file for llama.cpp; Llama, Qwen2 and Qwen3")
    add("--trust", action="store_true", help="control: run code in the folder that this machine did not write; remembered")


def export(flags: argparse.Namespace) -> int:
    """Writes a run's result."""
    from upslope.api import load

    run = load(flags.path, flags.trust)
    found = run.export(flags.to, merge=flags.merge, checkpoint=flags.checkpoint, dtype=flags.dtype, gguf=flags.gguf)
    if run.table["domain"] == "text":
        print(f"{found['holds']} in {found['dtype']}, of checkpoint {found['checkpoint']}")
        print(found["folder"])
        return 0
    how = f"largest relative difference {found['difference']:.0e}, by {found['checked_by']}"
    print(f"checked against the run's policy on {found['checked']:,} observations: the same actions, {how}")
    print(found["file"])
    return 0
