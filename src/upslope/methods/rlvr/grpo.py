"""GRPO and the methods that change one or two of its parts."""

from upslope.methods.control.ppo import ppo
from upslope.objective.advantage import GroupBaseline
from upslope.objective.aggregate import ConstantLength, SequenceMeanTokenMean, TokenMean
from upslope.objective.filter import DropConstantGroups
from upslope.objective.ratio import SequenceRatio
from upslope.objective.regularize import ReferenceKL
from upslope.objective.reward import OverlongPenalty
from upslope.objective.surrogate import ClippedWeight, GeometricMean, PessimisticClip
from upslope.objective.weight import TopEntropy
from upslope.types import Paper

grpo = ppo.derive(
    name="grpo",
    family="rlvr",
    paper=Paper(
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", arxiv="2402.03300", year=2024
    ),
    differs="the group's mean and spread instead of a value function, a mean per answer, a KL to the start in the loss",
    formula=r"L = mean_i (1/T_i) Σ_t [ -min(r A, clip(r, 1-ε, 1+ε) A) + β (e^x - x - 1) ],   A_i = (R_i - mean) / (std + 1e-6),   "
    r"x = log π_start - log π",
    use_when="rewards come at the end of an answer, groups of samples are cheap and the policy should stay near its start",
    advantage=GroupBaseline(scale="std"),
    shape=None,
    surrogate=PessimisticClip(low=0.2, high=0.2),
    aggregate=SequenceMeanTokenMean(),
    regularize=ReferenceKL(weight=0.04, estimator="k3"),
    models=None,
    on=None,
    notes="As a loss, k3 does not have the gradient of the divergence even on fresh samples; regularize.estimator=k3+ does.",
)

dr_grpo = grpo.derive(
    name="dr-grpo",
    paper=Paper("Understanding R1-Zero-Like Training: A Critical Perspective", arxiv="2503.20783", year=2025),
    differs="no division by the answer's length or the group's spread, which favour long wrong answers and extreme tasks; no KL",
    formula=r"L = mean_i (1/L) Σ_t -min(r A, clip(r, 1-ε, 1+ε) A),   A_i = R_i - mean,   L the token limit",
    use_when="answers differ much in length, or very easy and very hard tasks are mixed",
    advantage=GroupBaseline(scale="none"),
    aggregate=ConstantLength(),
    regularize=None,
)

dapo = grpo.derive(
    name="dapo",
    paper=Paper("DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arxiv="2503.14476", year=2025),
    differs="wider upper clip, mean over tokens, no KL, groups without signal are replaced, soft penalty for overlong answers",
    formula=r"L = (1/ΣT) Σ_i Σ_t -min(r A, clip(r, 1-0.2, 1+0.28) A),   groups with 0 < correct < G only",
    use_when="answers are long, many groups are all right or all wrong, and more samples can be afforded to replace them",
    surrogate=PessimisticClip(low=0.2, high=0.28, dual=10.0),
    aggregate=TokenMean(),
    regularize=None,
    filter=DropConstantGroups(refill=True),
    reward=OverlongPenalty(),
    on={"control": {"reward": "none"}},  # an episode that lasts until its time limit is no fault
    notes="Refilling samples as many tasks as are missing rather than whole batches, so that no surplus group grows stale. "
    "The limit of the penalty is the run's token limit, its buffer a fifth of it as in the paper.",
)

gspo = grpo.derive(
    name="gspo",
    paper=Paper("Group Sequence Policy Optimization", arxiv="2507.18071", year=2025),
    differs="one length-normalised ratio per answer, clipped as a whole in a far narrower region; no KL",
    formula=r"L = mean_i -min(s A, clip(s, 1-3e-4, 1+4e-4) A),   s_i = exp( (1/T_i) Σ_t (log π - log π_old) )",
    use_when="answers are long, rollouts are reused, or the model is a mixture of experts whose token ratios are noisy",
    ratio=SequenceRatio(),
    surrogate=PessimisticClip(low=3e-4, high=4e-4),
    regularize=None,
    notes="The bounds are the paper's, for answers of thousands of tokens. Short answers move s further: with tens of tokens "
    "set surrogate.low and surrogate.high near 0.2 / sqrt(T), or nearly every answer is clipped after the first update.",
)

cispo = grpo.derive(
    name="cispo",
    paper=Paper("MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", arxiv="2506.13585", year=2025),
    differs="clips the importance weight instead of the gradient, so that no token stops learning; mean over tokens, no KL",
    formula=r"L = (1/ΣT) Σ_i Σ_t -sg[min(r, 1+ε)] A log π",
    use_when="rare tokens matter and a clip would silence them",
    surrogate=ClippedWeight(low=1.0, high=5.0),
    aggregate=TokenMean(),
    regularize=None,
    notes="The paper does not print its upper bound; 5 is in the range that later work reports as good (0.2 to 5 are in use).",
)

gmpo = grpo.derive(
    name="gmpo",
    paper=Paper("Geometric-Mean Policy Optimization", arxiv="2507.20673", year=2025),
    differs="geometric mean of token ratios, each clipped in log space: an outlier counts once, so the range can be wide; no KL",
    formula=r"L = mean_i -A_i exp( (1/T_i) Σ_t c_t ),   c = sgn(A) min(sgn(A) d, sgn(A) clip(d, ±0.4)),   d = log π - log π_old",
    use_when="a few tokens have extreme ratios and should not decide for the rest of the answer",
    surrogate=GeometricMean(low=0.4, high=0.4),
    regularize=None,
)

high_entropy = dapo.derive(
    name="high-entropy",
    paper=Paper(
        "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning", arxiv="2506.01939", year=2025
    ),
    differs="only the fifth of tokens with the highest entropy learn",
    formula=r"L = (1/Σ w) Σ_i Σ_t -w_it min(r A, clip(r) A),   w = 1[H_it >= the 80% quantile of H]",
    use_when="answers are long and most of their tokens are foregone conclusions",
    weight=TopEntropy(fraction=0.2),
)
