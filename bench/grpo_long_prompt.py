"""A GRPO step with few-shot prompts, beside TRL: ``python bench/grpo_long_prompt.py``."""

from __future__ import annotations

from dataclasses import replace

from grpo_short import ROW as SHORT
from side_by_side import main
from sides import Row
from text_work import TextWork

ROW: Row = replace(
    SHORT,
    name="grpo_long_prompt",
    work="one GRPO step as in grpo_short, with few-shot prompts of 231 tokens, each with examples of its own",
    given=TextWork(prompt_tokens=231),
    window=1,
    wanted=5.0,
    goal="at least 5 times TRL is wanted",
)

if __name__ == "__main__":
    main(ROW)
