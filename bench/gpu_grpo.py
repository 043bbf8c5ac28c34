"""A GRPO step on a GPU, beside TRL: ``python bench/gpu_grpo.py [--random-weights] [--without-peer]``.

All weights of SmolLM2-135M are trained. TRL has float32 weights under bfloat16 autocast, its own way. Where TRL cannot be
installed, ``--without-peer`` measures our side alone, and the result has no ratio.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from side_by_side import arguments, main
from sides import Row, Setting, Side
from text_sides import EXACT, run_ours, run_trl
from text_work import TextWork

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

if __name__ == "__main__":
    parser = arguments(ROW)
    parser.add_argument("--random-weights", action="store_true", help="the model's sizes with random weights: needs no file")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of our side, as of upslope train")
    flags = parser.parse_args()
    chosen = tuple((name, ast.literal_eval(value)) for name, _, value in (each.partition("=") for each in flags.set))
    given = replace(GIVEN, settings=chosen, model="random" if flags.random_weights else "smollm2")
    words = f"{ROW.work}{'; random weights' if flags.random_weights else ''}{'; ' + ' '.join(flags.set) if flags.set else ''}"
    main(replace(ROW, given=given, work=words), flags)
