"""CLPO: the policy rewrites the problems it fails at or half knows, and learns from those too."""

from upslope.evolve.rewriting import Rewrites
from upslope.methods.rlvr.grpo import grpo
from upslope.objective.filter import DropConstantGroups
from upslope.objective.regularize.eased import EasedKL
from upslope.types import Paper

clpo = grpo.derive(
    name="clpo",
    family="curricula",
    paper=Paper("CLPO: Curriculum Learning meets Policy Optimization for LLM Reasoning", arxiv="2509.25004", year=2025),
    differs="hard problems are rewritten more simply and half-known ones in other words, by the policy itself and with the same "
    "answer, and answered as well; groups without signal are dropped; a small KL, half of it on hard problems",
    formula=r"as grpo over { x : 0 < p(x) < 1 } and { x' : 0 < p(x') < 1 },   x' = simpler(x) if p <= 0.3, another(x) if p <= 0.7, "
    r"  β = 0.001, halved for p <= 0.3",
    use_when="many problems are never or always solved, and what is near them can be learned from; a model that can rewrite a "
    "problem, or a task that makes easier ones (data.rewriter=TaskRewrites)",
    data=Rewrites(),
    filter=DropConstantGroups(),
    regularize=EasedKL(weight=0.001),
    notes="Thresholds, KL and the prompts' intent are those of the released code, the prompts themselves are shorter. Every group "
    "is compared within itself, rewrites too. The code trims a step to a number of rows that its devices divide, hard rewrites "
    "first; here nothing is left over. A step of which nothing has signal learns nothing (there all of it is kept, with advantage "
    "zero). Nobody checks that a rewrite by the policy has the old answer; where it has not, its answers are as a rule all wrong "
    "and dropped. Rewrites cost samples: up to as many again, and one more text for each. A later version of the paper also trains "
    "the rewriting itself, by how much likelier a right answer becomes; that is left out: each problem is rewritten once, so there "
    "is nothing to compare with.",
)
