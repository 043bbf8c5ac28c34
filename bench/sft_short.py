"""Supervised fine-tuning beside TRL: ``python bench/sft_short.py [--device cuda [--random-weights]] [--without-peer]``.

On the CPU a small model and short rows, on a GPU all weights of SmolLM2-135M and rows of 512 tokens. TRL is measured padded and
packed, and the better counts; a way in which its loss on the same rows is not ours is left out, with a word.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from sft_sides import EXACT, TRL_SETTINGS, SftWork, apart, first_losses, padded_and_packed, run_ours, run_trl
from side_by_side import arguments, main
from sides import Row, Setting, Side

ROW = Row(
    name="sft_short",
    work="one update of supervised fine-tuning: Llama of 4 layers, width 128, 53 characters; 64 rows of 12 + 24 tokens",
    unit="s an update",
    ours=Side("upslope", run_ours),
    peer=Side("TRL 1.16 SFTTrainer", run_trl, TRL_SETTINGS, package="trl"),
    given=SftWork(),
    window=10,
    exact=EXACT,
    near={"loss": 1e-3},
    wanted=2.0,
    goal="at least 2 times TRL is wanted",
)
GPU_ROW = replace(
    ROW,
    name="gpu_sft",
    work="one update of supervised fine-tuning: SmolLM2-135M, all weights, 64 rows of 512 tokens",
    ours=Side("upslope", run_ours, (Setting("as it comes"),)),
    peer=Side("TRL 1.16 SFTTrainer", run_trl, padded_and_packed([Setting("bfloat16 autocast")]), package="trl"),
    given=SftWork(model="smollm2", prompt_tokens=128, tokens=512, device="cuda"),
    window=5,
    wanted=1.5,
    goal="at least 1.5 times TRL with at most 60% of its memory is wanted",
    device="cuda",
)


def row_of(flags: argparse.Namespace) -> Row:
    """The row as the flags want it, without what is not the same work."""
    if flags.device == "cpu":
        row = ROW
    else:
        given = replace(GPU_ROW.given, model="random" if flags.random_weights else "smollm2")
        row = replace(GPU_ROW, given=given, work=f"{GPU_ROW.work}{'; random weights' if flags.random_weights else ''}")
    if flags.padded_only:
        kept = tuple(one for one in row.peer.settings if not one.options["packed"])
        return replace(row, peer=replace(row.peer, settings=kept))  # a loss that is another ends the measurement (`Row.near`)
    if flags.without_peer:
        return row
    losses = first_losses(row.given)
    print("loss on the first batch:", ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items()))
    wrong = apart(losses)
    if wrong:
        print(f"left out, as its loss is another: {', '.join(wrong)}", file=sys.stderr)
    kept = tuple(one for one in row.peer.settings if ("packed" if one.options["packed"] else "padded") not in wrong)
    return replace(row, peer=replace(row.peer, settings=kept))


if __name__ == "__main__":
    parser = arguments(ROW)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: SmolLM2-135M and rows of 512 tokens")
    parser.add_argument("--random-weights", action="store_true", help="of SmolLM2's sizes, on a GPU: needs no file")
    packed = (
        "leave TRL's packed way out: on an H200 it took six times as long as the padded one and 94 GB, too many beside the others"
    )
    parser.add_argument("--padded-only", action="store_true", help=packed)
    given = parser.parse_args()
    main(row_of(given), given)
