"""Knapsack RL: the answers of a step go where they buy the most."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.curriculum import Knapsack
from upslope.objective.memory import LastSuccess
from upslope.types import Paper

knapsack = grpo.derive(
    name="knapsack",
    family="curricula",
    paper=Paper("Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation", arxiv="2509.25849", year=2025),
    differs="problems get different numbers of answers under the same total: the rarely solved more, those that are clear two",
    formula=r"max_N Σ_i [1 - p_i^N_i - (1-p_i)^N_i] p_i (1-p_i)²,   Σ N_i = tasks · samples,   2 <= N_i <= 128,   "
    r"p_i = last success rate",
    use_when="problems come back, and some are solved so rarely that the usual number of answers seldom holds a right one",
    curriculum=Knapsack(),
    memory={"rate": LastSuccess()},
    notes="As released: 2 answers to problems that always or never failed, the usual number to new ones, and what those in between "
    "do not need goes to those that always failed. The released dynamic program values the smallest number of answers at zero "
    "instead of at what it is worth; ours maximises the formula, and greedily, which is the same optimum. Groups then differ in "
    "size, so --updates-per-step deals out equal numbers of groups and not of answers. The objective weighs rare successes: the "
    "share of groups with a gradient need not rise. Most is gained with long budgets (the paper has 2,048 answers a step).",
)
