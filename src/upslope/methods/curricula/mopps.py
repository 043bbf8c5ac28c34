"""MoPPS: a posterior of every problem's success rate says which to try next."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.curriculum import ByPosterior
from upslope.objective.memory import BetaPosterior
from upslope.types import Paper

mopps = grpo.derive(
    name="mopps",
    family="curricula",
    paper=Paper("Can Prompt Difficulty be Online Predicted for Accelerating RL Finetuning of Reasoning Models?",
                arxiv="2507.04632", year=2025),
    differs="problems whose success rate, drawn from a remembered posterior, is nearest to one half; no answer is spent on it",
    formula=r"p_i ~ Beta(α_i, β_i),   the m smallest (p_i - 1/2)² of 16 m candidates,   "
    r"(α, β) <- λ (α, β) + (1-λ) (1, 1) + (Σ R, Σ (1 - R)),   λ = 1",
    use_when="the training problems are a set of which each comes back several times, and many are always or never solved",
    curriculum=ByPosterior(),
    memory={"posterior": BetaPosterior()},
    notes="As released: topk at 1/2, 16 candidates, λ = 1 (memory.posterior.lam). The paper argues for less, as policies move; "
    "curriculum.mode=threshold takes the band from 0.3 to 0.7 instead. The release may begin with a prior from an evaluation "
    "beforehand; ours begins at (1, 1) (memory.posterior.successes, .failures). On an endless task no problem comes back and every "
    "draw is from the prior: bound it with --train-problems. A problem is known by its prompt.",
)  # fmt: skip
