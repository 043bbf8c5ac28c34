"""An update of DPO on pairs with long prompts, beside TRL: ``python bench/dpo_long_prompt.py``."""

from __future__ import annotations

from dataclasses import replace

from dpo_short import ROW as SHORT
from dpo_short import same_work
from pair_sides import PairWork
from side_by_side import arguments, main

ROW = replace(
    SHORT,
    name="dpo_long_prompt",
    work="one update of DPO: Llama of 4 layers, width 128, 53 characters; 16 pairs of 231 + 24 tokens",
    given=PairWork(rows=16, prompt_tokens=231, tokens=255),
    window=5,
    wanted=3.0,
    goal="at least 3 times TRL is wanted: a pair's prompt is computed once",
)

if __name__ == "__main__":
    flags = arguments(ROW).parse_args()
    main(ROW if flags.without_peer else same_work(ROW), flags)
