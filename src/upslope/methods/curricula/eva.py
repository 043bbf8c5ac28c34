"""eva: problems evolve towards what the policy can almost do."""

from upslope.evolve.evolving import Evolve
from upslope.evolve.pool import FromPool, ProblemPool
from upslope.methods.rlvr.reinforce import rloo
from upslope.types import Paper

eva = rloo.derive(
    name="eva",
    family="curricula",
    paper=Paper(
        "Scalable Reinforcement Post-Training Beyond Static Human Prompts: Evolving Alignment via Asymmetric Self-Play",
        arxiv="2411.00062",
        year=2024,
    ),
    differs="harder and other versions of the problems with the highest regret are made in every step and kept; three quarters of "
    "a step's problems come from there, by regret",
    formula=r"as rloo, on problems x ~ info(x) = max_j R_j - mean_j R_j;   a quarter of a step's problems, drawn by info, becomes "
    r"variants x' = harder(x), alike(x), which begin with info(x)",
    use_when="the task can make harder versions of a problem, and its own problems are too few or too easy to learn all there is",
    curriculum=FromPool(),
    memory={"pool": ProblemPool()},
    data=Evolve(),
    notes="The signal is that of the paper's online form; memory.pool.signal has max-min (its offline form), variance and failure. "
    "There a language model rewrites prompts, here the task does (harder, alike), so that answers stay known. How much of a step "
    "is evolved and how many problems are picked are our choices; four variants are the paper's. It normalises the signal where "
    "the rewards of families are not comparable, which is left to the reward here. Rewards of 0 and 1 give 1 - p where some of "
    "the answers are right and 0 where none or all are. Problems drawn twice for one step are answered once: but for that, "
    "curriculum.share=0 is rloo.",
)
