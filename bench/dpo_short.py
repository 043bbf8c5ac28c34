"""An update of DPO beside TRL: ``python bench/dpo_short.py [--device cuda [--random-weights]] [--without-peer]``.

On the CPU a small model and short pairs, on a GPU all weights of SmolLM2-135M and pairs of 256 + 256 tokens. TRL 1.16 has
no way without padding. Before the clock starts the losses of both sides are compared over the first updates: unless they are the
same there is no measurement.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from pair_sides import EXACT, PairWork, apart, first_losses, run_ours, run_trl
from side_by_side import arguments, main
from sides import Row, Setting, Side, scratch_folder
from text_sides import TRL_SETTINGS

from upslope.errors import UserError

ROW = Row(
    name="dpo_short",
    work="one update of DPO: Llama of 4 layers, width 128, 53 characters; 32 pairs of 12 + 24 tokens",
    unit="s an update",
    ours=Side("upslope", run_ours),
    peer=Side("TRL 1.16 DPOTrainer", run_trl, TRL_SETTINGS, package="trl"),
    given=PairWork(),
    window=10,
    exact=EXACT,
    near={"loss": 1e-4},
    wanted=2.0,
    goal="at least 2 times TRL is wanted",
)
GPU_ROW = replace(
    ROW,
    name="gpu_dpo",
    work="one update of DPO: SmolLM2-135M, all weights, 64 pairs of 256 + 256 tokens",
    ours=Side("upslope", run_ours, (Setting("as it comes"),)),
    peer=Side("TRL 1.16 DPOTrainer", run_trl, (Setting("bfloat16 autocast, padded"),), package="trl"),
    given=PairWork(model="smollm2", rows=64, prompt_tokens=256, tokens=512, device="cuda"),
    window=5,
    near={"loss": 1e-3},  # products are in bfloat16
    wanted=2.0,
    goal="at least 2 times TRL with at most half its memory is wanted",
    device="cuda",
)


def same_work(row: Row) -> Row:
    """The row, if both sides do the same.

    Raises:
        UserError: if their losses differ.
    """
    with scratch_folder():
        ours, theirs = first_losses(row.given)
    print("losses of the first updates, ours and TRL's:", *(f"{loss:.7f}" for loss in (*ours, *theirs)))
    if apart(ours, theirs, row.device):
        raise UserError("the losses of the first updates are not the same: there is nothing to compare with.")
    return row


def row_of(flags: argparse.Namespace) -> Row:
    """The row as the flags want it."""
    row = ROW
    if flags.device == "cuda":
        given = replace(GPU_ROW.given, model="random" if flags.random_weights else "smollm2")
        row = replace(GPU_ROW, given=given, work=f"{GPU_ROW.work}{'; random weights' if flags.random_weights else ''}")
    return row if flags.without_peer else same_work(row)


if __name__ == "__main__":
    parser = arguments(ROW)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: SmolLM2-135M and pairs of 256 + 256 tokens")
    parser.add_argument("--random-weights", action="store_true", help="of SmolLM2's sizes, on a GPU: needs no file")
    flags = parser.parse_args()
    main(row_of(flags), flags)
