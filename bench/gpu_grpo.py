"""A GRPO step on a GPU, beside TRL: ``python bench/gpu_grpo.py [--random-weights | --large] [--without-peer]``.

All weights of SmolLM2-135M are trained, or of a model of 1.5 billion parameters (``--large``) with answers of 512 tokens. TRL has
float32 weights under bfloat16 autocast, its own way. Where TRL cannot be installed, ``--without-peer`` measures our side alone,
and the result has no ratio.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import replace

from side_by_side import arguments, main
from sides import Row, Setting, Side
from text_sides import EXACT, run_ours, run_trl
from text_work import Sizes, TextWork

GIVEN = TextWork(model="smollm2", prompts=64, samples=8, prompt_tokens=28, max_tokens=24, device="cuda")
ROW = Row(
    name="gpu_grpo",
    work="one GRPO step: SmolLM2-135M, all weights, 64 prompts x 8 samples, 24 new tokens",
    unit="s a step",
    ours=Side("upslope", run_ours, (Setting("as it comes"),)),
    peer=Side("TRL 1.16 GRPOTrainer", run_trl, (Setting("bfloat16 autocast"),), package="trl"),
    given=GIVEN,
    window=5,
    exact=(*EXACT, "tokens_generated", "tokens_with_gradient"),
    near={"reward": 0.05},
    wanted=6.0,
    most_memory=12 * 1024.0,
    goal="at least 6 times TRL and at most 12 GiB is wanted",
    device="cuda",
)

THREADS = 8
"""Of both sides of the large row."""
LARGE = replace(
    ROW,
    ours=replace(ROW.ours, settings=(Setting("as it comes", THREADS),)),
    name="gpu_grpo_large",
    work="one GRPO step: 1.5 billion parameters in the shape of Qwen2, all weights, 16 prompts x 8 samples, 512 new tokens",
    given=TextWork(
        model="random", sizes=Sizes(vocabulary=151936, width=1536, inner=8960, layers=28, heads=12, key_heads=2), prompts=16,
        samples=8, prompt_tokens=64, max_tokens=512, device="cuda",
    ),
    window=1,
    wanted=5.0,
    most_memory=34 * 1024.0,
    goal="at least 5 times TRL and at most 34 GiB is wanted",
    in_turns=False,  # TRL's step was slow beside a process that waits; by itself its first one is too, why is not known
)  # fmt: skip


def large_row(flags: argparse.Namespace) -> Row:
    """The large row with TRL's rows in so many pieces: all at once they do not fit."""
    label = f"bfloat16 autocast, {flags.micro_batches} micro-batches{', checkpointing' if flags.checkpointing else ''}"
    options = {"micro_batches": flags.micro_batches, "checkpointing": flags.checkpointing}
    return replace(LARGE, peer=replace(LARGE.peer, settings=(Setting(label, THREADS, options=options),)))


if __name__ == "__main__":
    parser = arguments(ROW)
    parser.add_argument("--large", action="store_true", help="1.5 billion parameters, answers of 512 tokens; random weights")
    parser.add_argument("--micro-batches", type=int, default=8, help="with --large: in how many pieces TRL learns (8)")
    parser.add_argument("--checkpointing", action="store_true", help="with --large: TRL computes activations again")
    parser.add_argument("--random-weights", action="store_true", help="the model's sizes with random weights: needs no file")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of our side, as of upslope train")
    flags = parser.parse_args()
    chosen = tuple((name, ast.literal_eval(value)) for name, _, value in (each.partition("=") for each in flags.set))
    row = large_row(flags) if flags.large else ROW
    kind = "random" if flags.random_weights or flags.large else "smollm2"
    words = f"{row.work}{'; random weights' if kind == 'random' else ''}{'; ' + ' '.join(flags.set) if flags.set else ''}"
    main(replace(row, given=replace(row.given, settings=chosen, model=kind), work=words), flags)
