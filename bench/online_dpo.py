"""A step of online DPO beside TRL: ``python bench/online_dpo.py``."""

from __future__ import annotations

from online_pair_sides import run_ours, run_trl
from side_by_side import main
from sides import Row, Side
from text_sides import EXACT, TRL_SETTINGS
from text_work import TextWork

ROW = Row(
    name="online_dpo",
    work="one step of online DPO: Llama of 4 layers, width 128, 53 characters; 16 prompts of 6 tokens x 2 samples, 24 new tokens",
    unit="s a step",
    ours=Side("upslope", run_ours),
    peer=Side("TRL 1.16 OnlineDPOTrainer", run_trl, TRL_SETTINGS, package="trl"),
    given=TextWork(samples=2),
    window=5,
    exact=(*EXACT, "tokens_generated"),
    near={"reward": 0.05, "tokens_with_gradient": 0.1},
    wanted=3.0,
    goal="at least 3 times TRL is wanted",
)

if __name__ == "__main__":
    main(ROW)
