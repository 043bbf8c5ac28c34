"""Clip-Cov and KL-Cov: neither lets the few decisions of highest covariance use up the entropy."""

from upslope.methods.rlvr.grpo import grpo
from upslope.objective.aggregate import TokenMean
from upslope.objective.regularize.covariance import CovarianceKL
from upslope.objective.surrogate import Unclipped
from upslope.objective.surrogate.covariance import CovarianceClip
from upslope.types import Paper

_PAPER = Paper("The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arxiv="2505.22617", year=2025)

clip_cov = grpo.derive(
    name="clip-cov",
    paper=_PAPER,
    differs="a few random tokens whose log-probability and advantage covary most do not learn; wide clip, mean over tokens, no KL",
    formula=r"L = (1/ΣT) Σ_i Σ_t -m min(r A, clip(r, 0, 2) A),   m = 0 on max(1, ⌊2e-4 ΣT⌋) random t with "
    r"1 < (A - mean A)(log π - mean log π) < 5",
    use_when="the entropy collapses early and reward stalls with it, and a larger upper clip alone does not help",
    surrogate=CovarianceClip(fraction=2e-4, above=1.0, below=5.0, low=1.0, high=1.0),
    aggregate=TokenMean(),
    regularize=None,
    notes="Covariances are taken over the whole update; the released code takes them over what one process holds at a time. The "
    "fraction and the range are the paper's, for updates of a hundred thousand tokens and more: of a few hundred tokens the "
    "fraction is one, and few covariances lie above 1; raise surrogate.fraction and lower surrogate.above there. The paper's runs "
    "also drop groups without signal, as dapo does.",
)

kl_cov = grpo.derive(
    name="kl-cov",
    paper=_PAPER,
    differs="no clip; the tokens whose log-probability and advantage covary most are held near the step's start; mean over tokens",
    formula=r"L = (1/ΣT) Σ_i Σ_t [ -r A + m |log π - log π_old| ],   m = 1 on the max(1, ⌊2e-3 ΣT⌋) largest "
    r"(A - mean A)(log π - mean log π)",
    use_when="the entropy collapses early; smoother than clip-cov, and without its random choice",
    surrogate=Unclipped(),
    aggregate=TokenMean(),
    regularize=CovarianceKL(fraction=2e-3, weight=1.0),
    notes="The fraction is the paper's for 7B models; it takes 2e-4 for 32B. Only positive covariances are held, and ties all of "
    "them; the released code takes exactly as many as the fraction says. The term has no gradient in a step's first update, so "
    "it needs several updates per step to act.",
)
