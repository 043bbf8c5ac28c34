"""A GRPO step whose answers stop early and half of whose groups have no signal, beside TRL: ``python bench/grpo_early_stop.py``."""

from __future__ import annotations

from dataclasses import replace

from grpo_short import ROW as SHORT
from side_by_side import main
from sides import Row
from text_sides import EXACT
from text_work import TextWork

ROW: Row = replace(
    SHORT,
    name="grpo_early_stop",
    work="one GRPO step as in grpo_short, answers with a mean of 9 and at most 32 tokens, every second group without signal",
    given=TextWork(max_tokens=32, stops="early", silent=True),
    exact=EXACT,
    # Both sides draw their own lengths: over a whole measurement the means are within about 2% of each other.
    near={"tokens_generated": 0.05, "tokens_with_gradient": 0.08, "reward": 0.05},
    wanted=3.0,
    goal="at least 3 times TRL is wanted",
)

if __name__ == "__main__":
    main(ROW)
