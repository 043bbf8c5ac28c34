"""Learning without labels: the group's own vote is the reward."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.filter.some_answers import SomeAnswers
from upslope.objective.regularize import EntropyBonus, ReferenceKL
from upslope.objective.reward.novelty import SemanticNovelty
from upslope.objective.reward.vote import MajorityVote
from upslope.objective.surrogate import PessimisticClip
from upslope.types import Paper

ttrl = grpo.derive(
    name="ttrl",
    family="hybrid",
    paper=Paper("TTRL: Test-Time Reinforcement Learning", arxiv="2504.16084", year=2025),
    differs="no labels: the most common answer of a group counts as right; all answers vote, half of them learn; a smaller KL",
    formula=r"R_i = 1[ a_i = argmax_a Σ_j 1[a_j = a] ] over all N samples,   then L of GRPO over N/2 of them",
    use_when="problems come without answers, final answers can be compared, and the model is right more often than it is wrong in "
    "any one way",
    reward=MajorityVote(),
    filter=SomeAnswers(share=0.5),
    regularize=ReferenceKL(weight=0.001, estimator="k3"),
    notes="The paper draws 64 votes and learns from 32: --samples-per-task 64. Which half learns is left to chance, as is the "
    "answer among those with as many votes; the code takes the first. The task says which answers are the same. The reported "
    "reward is still the task's own, where it knows the answer; reward_verdict is the share that agreed, label_accuracy how often "
    "the vote was right. A policy that collapses to one answer agrees with itself and earns 1.",
)

evol_rl = ttrl.derive(
    name="evol-rl",
    paper=Paper(
        "Evolving Language Models without Labels: Majority Drives Selection, Novelty Promotes Variation",
        arxiv="2509.15194",
        year=2025,
    ),
    differs="answers that say what others do not are worth more, right or wrong; a wider upper clip, an entropy bonus",
    formula=r"R_i = 0.5 + 0.5 u_i if i agrees with the vote, -1 + 0.5 u_i if not,   u_i = novelty of what i says, from 0 to 1 on "
    r"its side,   novelty = 1 - ½ (mean + largest cosine)",
    use_when="as for ttrl, over a longer run: a plain vote makes all answers alike, and with them all that could still be found",
    reward=(MajorityVote(), SemanticNovelty()),
    surrogate=PessimisticClip(low=0.2, high=0.28),
    regularize=(ReferenceKL(weight=0.001, estimator="k3"), EntropyBonus(weight=0.003)),
    notes="Novelty is that of whole responses; the paper compares the reasoning by the embeddings of a 4B model, we by "
    "all-MiniLM-L6-v2, or by characters where its package is not installed (reward.1.embedding). An answer that is not there earns "
    "-1; the paper also refuses boxes without a number. Its script has an entropy bonus of 0 unless asked, with 0.001 to 0.003 in "
    "use.",
)
