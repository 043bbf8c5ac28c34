"""Preferences from trees: steps that follow the same beginning, compared by what was found behind them."""

from upslope.methods.preference.dpo import online_dpo
from upslope.objective.advantage.siblings import SiblingValues
from upslope.rollout.search import Search
from upslope.types import Paper

mcts_dpo = online_dpo.derive(
    name="mcts-dpo",
    paper=Paper("Monte Carlo Tree Search Boosts Reasoning via Iterative Preference Learning", arxiv="2405.00451", year=2024),
    differs="the pairs are single steps: a tree is searched for answers, and behind each beginning the best step wins against the "
    "worst, the surer the more often it was visited",
    formula=r"Q = r + γ V,  V = Σ_c max(1,N_c) Q_c / Σ_c max(1,N_c),  next: argmax Q + w p √N_parent/(1+N);   "
    r"L = -(1-a) log σ(βD) - a log σ(-βD),  D = log π(s_w)/π_start(s_w) - log π(s_l)/π_start(s_l),  "
    r"a = min(1 - 1/(1 + N_l/N_w), ½)",
    use_when="answers have several steps and whole answers are rarely right: a pair of steps says where it went wrong",
    rollout=Search(),
    advantage=SiblingValues(),
    notes="--samples-per-task is the number of answers finished in a tree; it is gone through rollout.visits times, four times as "
    "often from the beginning as from each later step. A step is a line, or a share of the token limit where there is none. "
    "Finished answers are scored by the task; the paper also lets the policy evaluate each step with the solution before it, which "
    "a small model cannot: rollout.evaluate=policy, where c is the chance of yes against no. Search is by the policy of each step, "
    "not by one of up to 64 steps ago. Contests whose sides were visited alike (a = ½) are dropped; the paper keeps them, where "
    "they pull the two together. Which eight of a tree's contests are kept is inferred: those furthest apart (rollout.contests).",
)
