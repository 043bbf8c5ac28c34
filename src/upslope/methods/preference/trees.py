"""Preferences from trees: steps that follow the same beginning, compared by what was found behind them."""

from upslope.methods.hybrid.sft import sft
from upslope.methods.preference.dpo import online_dpo, simpo
from upslope.objective.advantage.siblings import SiblingValues
from upslope.objective.stages import Stage
from upslope.rollout.given import FromAnswers
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

tp_llama = mcts_dpo.derive(
    name="tp-llama",
    paper=Paper(
        "Advancing Tool-Augmented Large Language Models: Integrating Insights from Errors in Inference Trees",
        arxiv="2406.07115",
        year=2024,
    ),
    differs="solutions are imitated first; then search goes depth first until an answer is right, and each step of that answer "
    "wins against the failed steps beside it",
    formula=r"sft: L = -mean log π(y*);   then L = -log σ(β [log π(s_w)/π_start(s_w) - mean_f log π(s_f)/π_start(s_f)]),   "
    r"s_w on the path to success, s_f its failed siblings",
    use_when="an answer is a chain of calls that is right or wrong as a whole, and solutions are at hand to begin with",
    stages=Stage.of_method(sft, share=0.3),
    rollout=Search(select="depth-first", actions=3, backup="mean", outcome="correct", commit=False, contests=0),
    advantage=SiblingValues(smoothing=False, losers=True),
    notes="Inferred from the abstract and a survey of it: constants are ours, and so is the share of imitation (stages.sft.share). "
    "The paper imitates and searches paths of its own data; here solutions come with the task and trees are the policy's own. It "
    "makes a pair of each failed sibling, here one contest has all of them and counts their mean (surrogate.losers). "
    "--samples-per-task is the number of answers after which a tree is given up. Whole paths in place of steps: rollout.depth=1. A "
    "tree in which nothing failed beside the path gives no pair, and one without a right answer none either.",
)

itool = simpo.derive(
    name="itool",
    paper=Paper("Boosting Tool Use of Large Language Models via Iterative Reinforced Fine-Tuning", arxiv="2501.09766", year=2025),
    differs="solutions are imitated first, easy ones before all; then trees are searched for the problems that an answer still "
    "gets wrong, and the pairs are steps of clearly different value",
    formula=r"sft easy, sft all;   then on { x : y ~ π is wrong } with Q(s) = mean R of answers through s:   "
    r"L = -log σ((β/|s_w|) log π(s_w) - (β/|s_l|) log π(s_l) - γ)   where Q(s_w) - Q(s_l) > 0.2",
    use_when="supervised learning has saturated on calls of functions, and what is left are small errors in single arguments",
    stages=(
        Stage.of_method(sft.derive(name="easy", rollout=FromAnswers(easiest=0.5)), share=0.25),
        Stage.of_method(sft, share=0.25),
    ),
    rollout=Search(backup="mean", actions=5, failed_only=True, commit=False),
    advantage=SiblingValues(smoothing=False, gap=0.2),
    notes="From a detailed description of the paper; constants are inferred. The two stages of imitation take the easier half of "
    "the problems and then all (stages.easy.share, stages.sft.share). A round of the paper, search on all that fails and then "
    "learning, is a step here. The first answer that decides who is searched is sampled and counts as such; where all are right "
    "nothing is learned. With DPO in place of SimPO: surrogate=SigmoidPreference, ratio=AgainstReferences.",
)
