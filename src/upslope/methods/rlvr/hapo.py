"""HAPO, the objective: baseline, trust region and step by token."""

from upslope.methods.rlvr.grpo import dapo
from upslope.objective.advantage.token_level import TokenLevelBaseline
from upslope.objective.surrogate.heterogeneous import EntropyAdaptiveClip
from upslope.types import Paper

hapo = dapo.derive(
    name="hapo",
    paper=Paper(
        "From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature", arxiv="2509.16591", year=2025
    ),
    differs="baseline over the group's tokens; each token's entropy sets its trust region and rescales its advantage",
    formula=r"L = (1/ΣT) Σ_i Σ_t -min(r A', clip(r, 1-ε_low(ĥ), 1+ε_high(ĥ)) A'),   A' = A (1+ĥ) outside the half band if "
    r"ĥ > 0, inside it if ĥ ≤ 0,   A over the group's tokens",
    use_when="answers differ in length and a few uncertain tokens decide them",
    advantage=TokenLevelBaseline(),
    surrogate=EntropyAdaptiveClip(low=0.2, high=0.2, dual=10.0),
    notes="The sampling part (a temperature by entropy) is not in this method. The released code scores confident tokens positive "
    "too (surrogate.unsigned) and takes the band from the adapted bounds (surrogate.adapted_band); its fall-back to the baseline "
    "per answer also looks at padding and so triggers more often. It takes the nearest token's entropy as the quantile "
    "(surrogate.interpolation=nearest) and the entropy of the policy that learns (surrogate.source=current); its quantile and "
    "spread are those of a micro-batch, here those of the whole update. With surrogate.widen and surrogate.redistribute at 0 and "
    "answers of equal length it is DAPO with the population's spread.",
)
