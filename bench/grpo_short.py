"""A GRPO step with short prompts, beside TRL: ``python bench/grpo_short.py``."""

from __future__ import annotations

from side_by_side import main
from sides import Row, Side
from text_sides import EXACT, TRL_SETTINGS, run_ours, run_trl
from text_work import TextWork

ROW = Row(
    name="grpo_short",
    work="one GRPO step: Llama of 4 layers, width 128, 53 characters; 16 prompts of 6 tokens x 8 samples, 24 new tokens",
    unit="s a step",
    ours=Side("upslope", run_ours),
    peer=Side("TRL 1.16 GRPOTrainer", run_trl, TRL_SETTINGS, package="trl"),
    given=TextWork(),
    window=5,
    exact=(*EXACT, "tokens_generated", "tokens_with_gradient"),
    near={"reward": 0.02},
    wanted=2.0,
    goal="at least 2 times TRL is wanted",
)

if __name__ == "__main__":
    main(ROW)
